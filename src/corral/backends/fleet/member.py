"""One node as the server sees it: what its agent has told, and what it shall do.

Both are kept as levels, not as messages: whatever was lost is contained in what comes next. Knows one node, no clock.
What follows from a report is returned, to be told to the server by whoever asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from corral.backends.base import (
    DetailsReport,
    HealthReport,
    NodePhase,
    NodeReport,
    PaceReport,
    Phase,
    Report,
    SavedReport,
    TaskKey,
    TaskOrder,
    TaskReport,
)
from corral.backends.fleet.leases import Standing
from corral.backends.fleet.messages import AgentReport, DesiredTask, LogAsk, ObservedTask
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass

_STRAYS_MAX = 1_000  # that are being sent away at once
_SPEC_GAP_MS = 5_000  # between two descriptions of a machine: each renumbers the cluster
_HEALTH_BURST, _HEALTH_GAP_MS = 256, 500  # lines about health at once, and then one each so often: each is journaled


class Seen(Struct):
    """What was told of a task. Nothing at all: it is expected, because an earlier server knew it."""

    up: TaskReport | None = None
    step: int | None = None
    down: TaskReport | None = None
    busy_ms: tuple[tuple[int, int], ...] = ()


class Wanted(Struct):
    """What shall become of a task, as of a version."""

    version: int
    order: TaskOrder | None = None
    deadline_ms: int | None = None
    why: str = ""
    kill: bool = False
    forget: bool = False

    @property
    def is_empty(self) -> bool:
        return self.order is None and self.deadline_ms is None and not self.kill and not self.forget


class Member:
    """``term`` counts how often the node was given up: what was said in an earlier term is void. ``is_heard``: its
    agent has told everything to this server."""

    def __init__(self, name: str, spec: NodeSpec | None, is_gone: bool) -> None:
        self.name, self.spec, self.is_gone = name, spec, is_gone
        self.term = 0
        self.session, self.seq, self.known = 0, 0, 0
        self.is_heard = False
        self.seen: dict[TaskKey, Seen] = {}
        self.wanted: dict[TaskKey, Wanted] = {}
        self.version, self.has_version = 0, 0
        self.log_asks: dict[int, LogAsk] = {}
        self.wake: Callable[[], None] = _nobody_waits
        self.complaint = ""
        self.fault = ""  # why its description of itself was not taken
        self._offered: NodeSpec | None = None  # what it says it is, if that is not known to the server yet
        self._described_ms: int | None = None
        self._health: dict[int | None, HealthReport] = {}  # said, and not told yet
        self._health_room, self._health_ms = _HEALTH_BURST, 0
        self._strays: set[TaskKey] = set()
        self.lacks: dict[str, str] = {}
        self.refused = 0
        self.is_leaving = False  # its agent says that the machine will be taken away

    @property
    def standing(self) -> Standing:
        return Standing(self.term, self.is_gone)

    # --- what it tells ------------------------------------------------------------------------------------------------

    def is_news(self, said: AgentReport) -> bool:
        return (said.session, said.seq) > (self.session, self.seq)

    def note(self, said: AgentReport) -> None:
        """That it was said. An agent that began anew counts its versions from the beginning."""
        if said.session > self.session:
            self.known, self.is_heard = 0, False
        self.session, self.seq = said.session, said.seq

    def refused_since(self, said: AgentReport) -> int:
        """How many orders its agent has refused since it last told."""
        before = self.refused if said.session == self.session else 0
        self.refused = said.refused
        return max(said.refused - before, 0)

    def observe(self, said: AgentReport, epoch: int, at_ms: int) -> tuple[list[Report], bool]:
        """What is new in a report, and whether everything should be said again."""
        self.note(said)
        if not said.is_full and said.base > self.known:
            return [], True
        told: list[Report] = []
        if said.details is not None:
            told.append(DetailsReport(self.name, said.details))
        told += [report for task in said.tasks for report in self._observe(task)]
        self.known = max(self.known, said.version)
        is_after = said.epoch == epoch and said.term == self.term
        if said.is_full:
            self.lacks = said.lacks
        if said.is_full and is_after:
            told += self._miss({task.key for task in said.tasks}, at_ms)
            self.is_heard = True
        return told, not self.is_heard

    def describe(self, said: AgentReport, now_ms: int) -> list[Report]:
        """What the machine says of itself, not more often than the server can bear; the newest is told in the end."""
        told: list[Report] = []
        if said.spec is not None:
            self._offered = said.spec
        is_due = self._described_ms is None or now_ms - self._described_ms >= _SPEC_GAP_MS
        if self._offered is not None and is_due:
            if self._offered != self.spec:
                self.spec, self._described_ms = self._offered, now_ms
                told.append(NodeReport(self.name, NodePhase.JOINED, self.spec))
            self._offered = None
        self._health.update({each.gpu: each for each in said.health})
        if self._health:
            refill = (now_ms - self._health_ms) // _HEALTH_GAP_MS
            self._health_room = min(self._health_room + refill, _HEALTH_BURST)
            self._health_ms += refill * _HEALTH_GAP_MS
            for gpu in list(self._health)[: self._health_room]:
                told.append(self._health.pop(gpu))
                self._health_room -= 1
        return told

    def hear_of_end(self, said: AgentReport, now_ms: int) -> list[Report]:
        """Whether the machine will be taken away, and when."""
        self.is_leaving = said.leaves_in_ms is not None
        if said.leaves_in_ms is None:
            return []
        return [NodeReport(self.name, NodePhase.LEAVING, until_ms=now_ms + said.leaves_in_ms)]

    def _observe(self, task: ObservedTask) -> Iterable[Report]:
        seen = self.seen.get(task.key)
        if seen is None:
            if (wanted := self.wanted.get(task.key)) is not None and wanted.forget:
                return  # it was let go; the agent has not heard of that yet
            seen = self.seen[task.key] = Seen()
        if seen.down is not None:
            return
        if task.up is not None and seen.up is None:
            seen.up = task.up
            yield task.up
        if task.step is not None and task.step != seen.step:
            seen.step = task.step
            yield SavedReport(task.key, task.step)
        if task.busy_ms != seen.busy_ms:
            seen.busy_ms = task.busy_ms
            yield PaceReport(task.key, self.name, task.busy_ms)
        if task.down is not None:
            seen.down = task.down
            yield task.down
        self._settle(task.key, seen)

    def _settle(self, key: TaskKey, seen: Seen) -> None:
        """What need not be said again: an order whose task was seen, and anything to a task that is over."""
        wanted = self.wanted.get(key)
        if wanted is None or wanted.forget:
            return
        if seen.up is not None or seen.down is not None:
            wanted.order = None
        if wanted.is_empty or seen.down is not None:
            del self.wanted[key]

    def _miss(self, there: set[TaskKey], at_ms: int) -> Iterable[Report]:
        """Tasks that were there once and of which the agent knows nothing: nobody else would ever tell their end."""
        for key, seen in list(self.seen.items()):
            wanted = self.wanted.get(key)
            if key not in there and seen.down is None and (wanted is None or wanted.order is None):
                yield from self._lose(key, seen, at_ms, "the agent has nothing of it any more: its data was lost")

    def lose_all(self, at_ms: int) -> list[Report]:
        """The node is given up: what was to be done there is void, what ran there is over."""
        self.is_gone, self.is_heard = True, False
        self.term += 1
        expected = [key for key, wanted in self.wanted.items() if wanted.order is not None]
        for key in expected:
            self.seen.setdefault(key, Seen())
        self.wanted = {key: wanted for key, wanted in self.wanted.items() if wanted.forget}
        self._strays &= self.wanted.keys()
        why = f"node {self.name} was given up: nothing was heard of it for longer than its lease"
        return [report for key, seen in list(self.seen.items()) for report in self._lose(key, seen, at_ms, why)]

    def _lose(self, key: TaskKey, seen: Seen, at_ms: int, why: str) -> Iterable[Report]:
        if seen.down is None:
            seen.down = TaskReport(
                key=key, phase=Phase.DOWN, at_ms=at_ms, node=self.name, exit_code=137, failure=FailureClass.NODE_LOST,
                why=why,
            )  # fmt: skip
            self.wanted.pop(key, None)
            yield seen.down

    def may_return(self, said: AgentReport, epoch: int) -> bool:
        """Whether a node that was given up may be used again: its agent knows that it was, and nothing runs there."""
        is_after = said.epoch == epoch and said.term == self.term
        return said.is_full and is_after and all(task.down is not None for task in said.tasks)

    # --- what it shall do ---------------------------------------------------------------------------------------------

    def want(self, key: TaskKey) -> Wanted:
        """To be changed by the caller: it is new in what the agent is told next."""
        self.version += 1
        wanted = self.wanted.setdefault(key, Wanted(self.version))
        wanted.version = self.version
        return wanted

    def send_away(self, strays: Sequence[ObservedTask]) -> bool:
        """Tasks that it has and was never given end, and are forgotten there; nobody else hears of them. Returns
        whether some are left for the next time."""
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

    def end_stray(self, key: TaskKey) -> None:
        """It is given to the node now: what was asked of a stray of this name is void."""
        if key in self._strays:
            self._strays.discard(key)
            self.wanted.pop(key, None)

    def told_again(self, key: TaskKey) -> list[Report]:
        seen = self.seen[key]
        saved = [] if seen.step is None else [SavedReport(key, seen.step)]
        return [*([seen.up] if seen.up else []), *saved, *([seen.down] if seen.down else [])]

    def has(self, version: int) -> None:
        """The agent has carried out everything up to this version."""
        self.has_version = version
        for key, wanted in list(self.wanted.items()):
            if wanted.forget and wanted.version <= version:
                del self.wanted[key]
                self._strays.discard(key)

    def desired_after(self, base: int, now_ms: int) -> tuple[DesiredTask, ...]:
        """Deadlines travel as what is left of them: clocks of different machines are not compared."""
        return tuple(
            DesiredTask(
                key=key, order=wanted.order, why=wanted.why, kill=wanted.kill, forget=wanted.forget,
                leave_in_ms=None if wanted.deadline_ms is None else max(wanted.deadline_ms - now_ms, 0),
            )
            for key, wanted in sorted(self.wanted.items(), key=lambda each: each[1].version)
            if wanted.version > base
        )  # fmt: skip


def not_there(order: TaskOrder, at_ms: int) -> TaskReport:
    """What becomes of an order for a node that is not there."""
    why = f"node {order.node} was given up before the task began"
    return TaskReport(
        key=order.key, phase=Phase.DOWN, at_ms=at_ms, node=order.node, exit_code=126, failure=FailureClass.NODE_LOST,
        why=why,
    )  # fmt: skip


def never_began(key: TaskKey, node: str, at_ms: int) -> TaskReport:
    """What becomes of a task that is to end before anybody was asked to begin it."""
    why = "it was told to leave before it began"
    return TaskReport(key=key, phase=Phase.DOWN, at_ms=at_ms, node=node, exit_code=143, why=why)


def _nobody_waits() -> None:
    """No agent is listening at this moment."""
