"""A backend of one machine with a watch over it: the same seam, and reports of health among those of tasks.

Used by the server over the local backend and by an agent over whatever it runs. Adds nothing to what becomes of tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.backends.base import Backend, KnowsBeforehand, LogPart, Phase, Report, TaskKey, TaskOrder, TaskReport, Tell
from corral.backends.health.lemons import End
from corral.backends.health.monitor import Monitor
from corral.backends.local.task.lease import WHY
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.core.work import Work


class WatchedBackend:
    def __init__(self, backend: Backend, monitor: Monitor) -> None:
        self._backend, self.monitor = backend, monitor
        self._is_adopting = False
        self._users: dict[str, str] = {}  # of gangs that were launched here

    def nodes(self) -> Sequence[NodeSpec]:
        return self._backend.nodes()

    def open(self, tell: Tell, epoch: int) -> None:
        def hear(report: Report) -> None:
            if isinstance(report, TaskReport):
                self._note(report)
            tell(report)

        self._is_adopting = True
        self._backend.open(hear, epoch)
        self._is_adopting = False
        self.monitor.begin(tell)

    def _note(self, report: TaskReport) -> None:
        """An end that is told again after a restart was judged before, unless nobody was there to see it."""
        occupancy = self.monitor.occupancy
        if report.phase is Phase.UP:
            occupancy.runs(report.key, report.gpus)
            return
        gpus = occupancy.over(report.key)
        if self._is_adopting and not occupancy.is_remembered(report.key):
            return
        if gpus is not None and report.why != WHY:  # that a lease ran out says nothing of the GPUs
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

    def kill(self, key: TaskKey) -> None:
        self.monitor.occupancy.asked_to_leave(key)
        self._backend.kill(key)

    def known(self) -> Sequence[TaskKey]:
        return self._backend.known()

    def forget(self, key: TaskKey) -> None:
        self._users.pop(key.gang, None)
        self._backend.forget(key)

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        return self._backend.read_log(key, stream, offset, limit)

    def cannot_run(self, work: Work) -> str:
        return self._backend.cannot_run(work) if isinstance(self._backend, KnowsBeforehand) else ""

    def cannot_run_as(self, account: str) -> str:
        return self._backend.cannot_run_as(account) if isinstance(self._backend, KnowsBeforehand) else ""

    def lacks(self, node: str) -> Mapping[str, str]:
        return self._backend.lacks(node) if isinstance(self._backend, KnowsBeforehand) else {}

    def close(self) -> None:
        self.monitor.close()
        self._backend.close()
