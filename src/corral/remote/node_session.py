"""One node as the server sees it: its last reported state, and its desired state.

Both are kept as states, not as messages: the next message contains whatever was lost. Knows one node, no clock. The
reports that follow from a message are returned to the caller, which passes them on to the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.remote.leases import LeaseStatus
from corral.remote.messages import AgentReport, DesiredTask, LogAsk, ObservedTask, StreamAsk
from corral.runtime.base import (
    DetailsReport,
    HealthReport,
    NodePhase,
    NodeReport,
    PaceReport,
    Phase,
    Report,
    SavedReport,
    StopReport,
    TaskKey,
    TaskOrder,
    TaskReport,
)

_STRAYS_MAX = 1_000  # tasks that are being killed at once because the node was never given them
_SPEC_GAP_MS = 5_000  # between two descriptions of a machine: each renumbers the cluster
_HEALTH_BURST, _HEALTH_GAP_MS = 256, 500  # health reports at once, and then one in this time: each is journaled


class ObservedTaskState(Struct):
    """What was reported of a task. Nothing at all: it is expected, because an earlier server knew it."""

    up: TaskReport | None = None
    step: int | None = None
    down: TaskReport | None = None
    busy_ms: tuple[tuple[int, int], ...] = ()
    stop: int | None = None
    path: str = ""
    save_ms: int = 0
    stall_ms: int = 0


class DesiredTaskState(Struct):
    """The desired state of a task, as of a version."""

    version: int
    order: TaskOrder | None = None
    deadline_ms: int | None = None
    why: str = ""
    stop_at: int | None = None
    kill: bool = False
    forget: bool = False

    @property
    def is_empty(self) -> bool:
        return self.order is None and self.deadline_ms is None and not self.kill and not self.forget


class NodeSession:
    """``term`` counts how often the node was declared lost: messages of an earlier term do not count. ``is_heard``: its
    agent has sent a full report to this server."""

    def __init__(self, name: str, spec: NodeSpec | None, is_gone: bool) -> None:
        self.name = name
        self.spec = spec
        self.is_gone = is_gone
        self.term = 0
        self.session = 0
        self.seq = 0
        self.known = 0  # version of the observed state
        self.is_heard = False
        self.seen: dict[TaskKey, ObservedTaskState] = {}
        self.wanted: dict[TaskKey, DesiredTaskState] = {}
        self.version, self.has_version = 0, 0
        self.log_asks: dict[int, LogAsk] = {}
        self.stream_asks: dict[str, StreamAsk] = {}  # by ticket
        self.wake: Callable[[], None] = _nothing_waits
        self.complaint = ""
        self.fault = ""  # why its description of itself was refused
        self._offered: NodeSpec | None = None  # its latest description, if the server does not have it yet
        self._described_ms: int | None = None
        self._health: dict[int | None, HealthReport] = {}  # received, but not passed on yet
        self._health_room, self._health_ms = _HEALTH_BURST, 0
        self._strays: set[TaskKey] = set()
        self.lacks: dict[str, str] = {}
        self.separation: dict[str, str] = {}
        self.refused = 0
        self.is_leaving = False  # its agent reports that the machine will be taken away

    @property
    def status(self) -> LeaseStatus:
        return LeaseStatus(self.term, self.is_gone)

    # --- reported state -----------------------------------------------------------------------------------------------

    def is_news(self, message: AgentReport) -> bool:
        return (message.session, message.seq) > (self.session, self.seq)

    def note(self, message: AgentReport) -> None:
        """Record session and number of a report. A restarted agent counts its versions from the beginning."""
        if message.session > self.session:
            self.known, self.is_heard = 0, False
        self.session, self.seq = message.session, message.seq

    def refused_since(self, message: AgentReport) -> int:
        """How many orders its agent has refused since its last report."""
        before = self.refused if message.session == self.session else 0
        self.refused = message.refused
        return max(message.refused - before, 0)

    def observe(self, message: AgentReport, epoch: int, at_ms: int) -> tuple[list[Report], bool]:
        """What is new in a report, and whether a full report is needed."""
        self.note(message)
        reports: list[Report] = [] if message.activity is None else [message.activity]
        if not message.is_full and message.base > self.known:
            return reports, True
        if message.details is not None:
            reports.append(DetailsReport(self.name, message.details))
        reports += [report for task in message.tasks for report in self._observe(task)]
        self.known = max(self.known, message.version)
        is_after = message.epoch == epoch and message.term == self.term
        if message.is_full:
            self.lacks, self.separation = message.lacks, message.separation
        if message.is_full and is_after:
            reports += self._report_missing({task.key for task in message.tasks}, at_ms)
            self.is_heard = True
        return reports, not self.is_heard

    def describe(self, message: AgentReport, now_ms: int) -> list[Report]:
        """Pass on how the machine describes itself, at a limited rate. The newest description always gets through."""
        reports: list[Report] = []
        if message.spec is not None:
            self._offered = message.spec
        is_due = self._described_ms is None or now_ms - self._described_ms >= _SPEC_GAP_MS
        if self._offered is not None and is_due:
            if self._offered != self.spec:
                self.spec, self._described_ms = self._offered, now_ms
                reports.append(NodeReport(self.name, NodePhase.JOINED, self.spec))
            self._offered = None
        self._health.update({each.gpu: each for each in message.health})
        if self._health:
            refill = (now_ms - self._health_ms) // _HEALTH_GAP_MS
            self._health_room = min(self._health_room + refill, _HEALTH_BURST)
            self._health_ms += refill * _HEALTH_GAP_MS
            for gpu in list(self._health)[: self._health_room]:
                reports.append(self._health.pop(gpu))
                self._health_room -= 1
        return reports

    def note_leaving(self, message: AgentReport, now_ms: int) -> list[Report]:
        """Whether the machine will be taken away, and when."""
        self.is_leaving = message.leaves_in_ms is not None
        if message.leaves_in_ms is None:
            return []
        return [NodeReport(self.name, NodePhase.LEAVING, until_ms=now_ms + message.leaves_in_ms)]

    def _observe(self, task: ObservedTask) -> Iterable[Report]:
        seen = self.seen.get(task.key)
        if seen is None:
            if (wanted := self.wanted.get(task.key)) is not None and wanted.forget:
                return  # it was forgotten here; the agent does not know that yet
            seen = self.seen[task.key] = ObservedTaskState()
        if seen.down is not None:
            return
        if task.up is not None and seen.up is None:
            seen.up = task.up
            yield task.up
        if task.step is not None and task.step != seen.step:
            seen.step, seen.path = task.step, task.path
            seen.save_ms = task.save_ms
            seen.stall_ms = task.stall_ms
            yield SavedReport(task.key, task.step, task.path, task.save_ms, task.stall_ms)
        if task.stop is not None and task.stop != seen.stop:
            seen.stop = task.stop
            yield StopReport(task.key, task.stop)
        if task.busy_ms != seen.busy_ms:
            seen.busy_ms = task.busy_ms
            yield PaceReport(task.key, self.name, task.busy_ms)
        if task.down is not None:
            seen.down = task.down
            yield task.down
        self._settle(task.key, seen)

    def _settle(self, key: TaskKey, seen: ObservedTaskState) -> None:
        """Drop what need not be sent again: the order of a task that was seen, and anything for one that has ended."""
        wanted = self.wanted.get(key)
        if wanted is None or wanted.forget:
            return
        if seen.up is not None or seen.down is not None:
            wanted.order = None
        if wanted.is_empty or seen.down is not None:
            del self.wanted[key]

    def _report_missing(self, there: set[TaskKey], at_ms: int) -> Iterable[Report]:
        """Report tasks as lost that were there once and that the agent no longer has: their end would never come."""
        for key, seen in list(self.seen.items()):
            wanted = self.wanted.get(key)
            if key not in there and seen.down is None and (wanted is None or wanted.order is None):
                yield from self._lose(key, seen, at_ms, "the agent no longer knows the task: its data was lost")

    def lose_all(self, at_ms: int) -> list[Report]:
        """The node is declared lost: drop its orders, and report its tasks as lost."""
        self.is_gone, self.is_heard = True, False
        self.term += 1
        expected = [key for key, wanted in self.wanted.items() if wanted.order is not None]
        for key in expected:
            self.seen.setdefault(key, ObservedTaskState())
        self.wanted = {key: wanted for key, wanted in self.wanted.items() if wanted.forget}
        self._strays &= self.wanted.keys()
        why = f"node {self.name} was lost: its lease expired"
        return [report for key, seen in list(self.seen.items()) for report in self._lose(key, seen, at_ms, why)]

    def _lose(self, key: TaskKey, seen: ObservedTaskState, at_ms: int, why: str) -> Iterable[Report]:
        if seen.down is None:
            seen.down = TaskReport(
                key=key,
                phase=Phase.DOWN,
                at_ms=at_ms,
                node=self.name,
                exit_code=137,
                failure=FailureClass.NODE_LOST,
                why=why,
            )
            self.wanted.pop(key, None)
            yield seen.down

    def may_return(self, message: AgentReport, epoch: int) -> bool:
        """Whether a lost node may be used again: its agent knows that it was lost, and nothing runs there."""
        is_after = message.epoch == epoch and message.term == self.term
        return message.is_full and is_after and all(task.down is not None for task in message.tasks)

    # --- desired state ------------------------------------------------------------------------------------------------

    def want(self, key: TaskKey) -> DesiredTaskState:
        """The desired state of a task, for the caller to change. It will be part of the next answer to the agent."""
        self.version += 1
        wanted = self.wanted.setdefault(key, DesiredTaskState(self.version))
        wanted.version = self.version
        return wanted

    def end_strays(self, strays: Sequence[ObservedTask]) -> bool:
        """Kill tasks that the node has but was never given, and have its agent forget them; they are not passed on.
        Returns whether some are left for the next time."""
        has_more = False
        for task in strays:
            wanted = self.wanted.get(task.key)
            if wanted is not None and (wanted.forget or (wanted.kill and task.down is None)):
                continue
            if len(self._strays) >= _STRAYS_MAX and task.key not in self._strays:
                has_more = True
                continue
            self._strays.add(task.key)
            wanted = self.want(task.key)
            wanted.kill, wanted.forget = task.down is None, task.down is not None
        self.wake()
        return has_more

    def drop_stray(self, key: TaskKey) -> None:
        """The task is given to the node now: drop what was ordered for a stray with this key."""
        if key in self._strays:
            self._strays.discard(key)
            self.wanted.pop(key, None)

    def repeat_reports(self, key: TaskKey) -> list[Report]:
        seen = self.seen[key]
        saved = [] if seen.step is None else [SavedReport(key, seen.step, seen.path, seen.save_ms, seen.stall_ms)]
        stop = [] if seen.stop is None else [StopReport(key, seen.stop)]
        return [*([seen.up] if seen.up else []), *saved, *stop, *([seen.down] if seen.down else [])]

    def has(self, version: int) -> None:
        """The agent has applied everything up to this version."""
        self.has_version = version
        for key, wanted in list(self.wanted.items()):
            if wanted.forget and wanted.version <= version:
                del self.wanted[key]
                self._strays.discard(key)

    def desired_after(self, base: int, now_ms: int) -> tuple[DesiredTask, ...]:
        """Deadlines are sent as the time that is left: clocks of different machines are not compared."""
        return tuple(
            DesiredTask(
                key=key,
                order=wanted.order,
                why=wanted.why,
                stop_at=wanted.stop_at,
                kill=wanted.kill,
                forget=wanted.forget,
                leave_in_ms=None if wanted.deadline_ms is None else max(wanted.deadline_ms - now_ms, 0),
            )
            for key, wanted in sorted(self.wanted.items(), key=lambda each: each[1].version)
            if wanted.version > base
        )


def lost_before_start(order: TaskOrder, at_ms: int) -> TaskReport:
    """The result of an order for a node that is lost."""
    return TaskReport(
        key=order.key,
        phase=Phase.DOWN,
        at_ms=at_ms,
        node=order.node,
        exit_code=126,
        failure=FailureClass.NODE_LOST,
        why=f"node {order.node} was lost before the task started",
    )


def stopped_before_start(key: TaskKey, node: str, at_ms: int) -> TaskReport:
    """The result of a task that was stopped before its node was asked to start it."""
    why = "it was stopped before it started"
    return TaskReport(key=key, phase=Phase.DOWN, at_ms=at_ms, node=node, exit_code=143, why=why)


def _nothing_waits() -> None:
    """No agent is waiting for orders."""
