"""A backend of one machine with a health monitor: the same interface, with health reports among those of tasks.

Used by the server around the local backend, and by an agent around its own. Changes nothing about tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.core.work import Work
from corral.health.lemons import End
from corral.health.monitor import Monitor
from corral.runtime.base import (
    ActivityReport,
    Backend,
    Capabilities,
    LogPart,
    Phase,
    Report,
    TaskKey,
    TaskOrder,
    TaskReport,
    Tell,
)
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.task.lease import WHY


class WatchedBackend:
    def __init__(self, backend: Backend, monitor: Monitor) -> None:
        self._backend, self.monitor = backend, monitor
        self._is_adopting = False
        self._users: dict[str, str] = {}  # of gangs that were launched here

    def nodes(self) -> Sequence[NodeSpec]:
        return self._backend.nodes()

    def open(self, tell: Tell, epoch: int) -> None:
        def on_report(report: Report) -> None:
            if isinstance(report, TaskReport):
                self._note(report)
            elif isinstance(report, ActivityReport):
                report = self.monitor.activities.added(report, self.monitor.occupancy.known())
            tell(report)

        self._is_adopting = True
        self._backend.open(on_report, epoch)
        self._is_adopting = False
        self.monitor.begin(tell)

    def _note(self, report: TaskReport) -> None:
        """An end that is reported again after a restart was judged before, unless no monitor ran when it came."""
        occupancy = self.monitor.occupancy
        if report.phase is Phase.UP:
            occupancy.runs(report.key, report.gpus)
            return
        gpus = occupancy.over(report.key)
        if self._is_adopting and not occupancy.is_remembered(report.key):
            return
        if gpus is not None and report.why != WHY:  # an expired lease says nothing about the GPUs
            failure = report.failure or (FailureClass.USER_ERROR if report.exit_code else None)
            user = self._users.get(report.key.gang, "")
            self.monitor.ended(End(report.at_ms, report.key.gang, (report.node, *gpus), failure, user))

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        self.monitor.occupancy.launched(orders)
        for order in orders:
            self._users[order.key.gang] = dict(order.env).get("CORRAL_USER", "")
        self.monitor.make_way([uuid for order in orders for uuid in order.gpus])
        self._backend.launch(orders)

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        self.monitor.occupancy.asked_to_leave(key)
        self._backend.warn(key, deadline_ms, why)

    def stop_at(self, key: TaskKey, step: int) -> None:
        self._backend.stop_at(key, step)

    def kill(self, key: TaskKey) -> None:
        self.monitor.occupancy.asked_to_leave(key)
        self._backend.kill(key)

    def known(self) -> Sequence[TaskKey]:
        return self._backend.known()

    def forget(self, key: TaskKey) -> None:
        self._users.pop(key.gang, None)
        self._backend.forget(key)

    def step_socket(self, key: TaskKey) -> str:
        return self._backend.step_socket(key) if isinstance(self._backend, LocalBackend) else ""

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        return self._backend.read_log(key, stream, offset, limit)

    def cannot_run(self, work: Work) -> str:
        return self._backend.cannot_run(work) if isinstance(self._backend, Capabilities) else ""

    def cannot_run_as(self, account: str) -> str:
        return self._backend.cannot_run_as(account) if isinstance(self._backend, Capabilities) else ""

    def lacks(self, node: str) -> Mapping[str, str]:
        return self._backend.lacks(node) if isinstance(self._backend, Capabilities) else {}

    def separation(self, node: str) -> Mapping[str, str]:
        return self._backend.separation(node) if isinstance(self._backend, Capabilities) else {}

    def close(self) -> None:
        self.monitor.close()
        self._backend.close()
