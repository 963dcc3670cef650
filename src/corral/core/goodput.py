"""Goodput: which part of its time a gang has trained, and where the rest went; a fold of events, live and simulated.

Pure. From its submission to its end every millisecond of a gang has one cause: it waited, started, trained, stood still
to save, waited for a slow rank, did work that was lost, was broken until it was repaired, or was leaving. Work counts
as trained when a checkpoint holds it or the gang has succeeded. A gang is known from its first placement on.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from corral.core import events as e
from corral.core.cluster.resources import Seat
from corral.core.gang_id import job_of
from corral.core.model import GangState
from corral.core.state import State

#: Causes. ``unsaved``: trained since the newest checkpoint, in an attempt that still runs.
TRAINED = "trained"
UNSAVED = "unsaved"
QUEUE = "queue"
START = "start"
SAVING = "saving"
LOST = "lost"
REPAIR = "repair"
STOPPING = "stopping"
STRAGGLER = "straggler"
CAUSES = (TRAINED, UNSAVED, QUEUE, START, SAVING, LOST, REPAIR, STOPPING, STRAGGLER)
_PHASES = {
    GangState.STARTING: START,
    GangState.RUNNING: UNSAVED,
    GangState.BROKEN: REPAIR,
    GangState.STOPPING: STOPPING,
}
_GangEvent = (
    e.GangPlaced
    | e.GangStarted
    | e.CheckpointCommitted
    | e.GangSlowed
    | e.TasksLost
    | e.GangEvicted
    | e.GangRepaired
    | e.GangStopped
    | e.GangFinished
)


class GangGoodput(Struct):
    """One gang. ``ms``: time by cause, up to ``since_ms``; from there on it is in ``phase``.

    ``stall_ms``, ``save_ms``: of its last save. ``slow_percent``: how long the slowest rank takes for a step, of the
    usual; above 100 the others wait for the rest of it.
    """

    gpu_milli: int
    since_ms: int
    phase: str = QUEUE
    ms: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    attempts: int = 0
    failures: int = 0
    saves: int = 0
    stall_ms: int = 0
    save_ms: int = 0
    slow_percent: int = 100
    is_over: bool = False

    def until(self, now_ms: int) -> None:
        """Account for the time up to now."""
        if not self.is_over:
            passed_ms = max(0, now_ms - self.since_ms)
            waited_ms = passed_ms - passed_ms * 100 // self.slow_percent if self.phase == UNSAVED else 0
            self.add(self.phase, passed_ms - waited_ms)
            self.add(STRAGGLER, waited_ms)
            self.since_ms = max(self.since_ms, now_ms)

    def add(self, cause: str, ms: int) -> None:
        if ms:
            self.ms[cause] = self.ms.get(cause, 0) + ms

    def move(self, source: str, target: str, ms: int) -> None:
        """Time of one cause turns out to be of another."""
        moved = min(ms, self.ms.get(source, 0))
        if moved > 0:
            self.ms[source] -= moved
            self.add(target, moved)


class Goodput:
    """The fold: takes events in order. ``keeps``: gangs that have ended stay; otherwise only their sum does."""

    def __init__(self, *, keeps: bool = True) -> None:
        self.gangs: dict[str, GangGoodput] = {}
        self._keeps = keeps
        self._ended: dict[str, int] = {}  # cause -> GPU-milliseconds of gangs that were dropped
        self._submitted: dict[str, int] = {}  # job -> when

    def take(self, event: object) -> None:
        if isinstance(event, e.JobSubmitted):
            self._submitted[event.job] = event.at_ms
        elif isinstance(event, e.JobEnded):
            self._submitted.pop(event.job, None)
        elif isinstance(event, _GangEvent):
            self._take_gang(event)

    def adopt(self, state: State, now_ms: int) -> None:
        """Begin in the middle, with the gangs of a state: what they did before is not known."""
        self._submitted = {job.id: job.submitted_ms for job in state.jobs.values()}
        for gang in state.holders.values():
            found = GangGoodput(gang.gpu_milli, now_ms, _PHASES.get(gang.state, QUEUE))
            found.nodes = len({seat.node for seat in gang.seats})
            self.gangs[gang.id] = found

    def gpu_ms(self, now_ms: int) -> dict[str, int]:
        """GPU-milliseconds by cause, of all gangs up to now."""
        total = dict(self._ended)
        for found in self.gangs.values():
            found.until(now_ms)
            _add(total, found)
        return total

    def _take_gang(self, event: _GangEvent) -> None:
        found = self.gangs.get(event.gang)
        if found is None and isinstance(event, e.GangPlaced):
            begin_ms = self._submitted.get(job_of(event.gang), event.at_ms)
            found = self.gangs[event.gang] = GangGoodput(0, begin_ms)
        if found is None or found.is_over:
            return
        found.until(event.at_ms)
        _take(found, event)
        if isinstance(event, e.GangFinished) and not self._keeps:
            _add(self._ended, self.gangs.pop(event.gang))


def _add(total: dict[str, int], found: GangGoodput) -> None:
    for cause, ms in found.ms.items():
        total[cause] = total.get(cause, 0) + ms * found.gpu_milli // 1000


def _take(found: GangGoodput, event: _GangEvent) -> None:
    match event:
        case e.GangPlaced():
            _seat(found, event.seats, event.spares)
            found.phase = START
        case e.GangStarted():
            found.phase = UNSAVED
        case e.CheckpointCommitted():
            _saved(found, event)
        case e.GangSlowed():
            found.slow_percent = max(event.percent, 100)
        case e.TasksLost():
            found.phase = found.phase if found.phase == STOPPING else REPAIR
            found.failures += 1
        case e.GangRepaired():
            _seat(found, event.seats, event.spares)
            _lose(found)
            found.phase = REPAIR
        case e.GangEvicted():
            found.phase = STOPPING
        case e.GangStopped():
            _keep(found, 0) if event.failure is None else _lose(found)
            found.phase = QUEUE
        case e.GangFinished():
            _keep(found, 0) if event.state is GangState.SUCCEEDED else _lose(found)
            found.is_over = True


def _seat(found: GangGoodput, seats: tuple[Seat, ...], spares: tuple[Seat, ...]) -> None:
    found.attempts += 1
    found.slow_percent = 100
    found.nodes = len({seat.node for seat in seats})
    found.gpu_milli = sum(1000 * seat.gpus.bit_count() for seat in (*seats, *spares))


def _saved(found: GangGoodput, event: e.CheckpointCommitted) -> None:
    """The checkpoint holds the work up to the time when its save began."""
    found.saves += 1
    found.stall_ms = event.stall_ms
    found.save_ms = event.save_ms
    found.move(UNSAVED, SAVING, event.stall_ms)
    _keep(found, max(0, event.save_ms - event.stall_ms) if found.phase == UNSAVED else 0)


def _keep(found: GangGoodput, after_ms: int) -> None:
    found.move(UNSAVED, TRAINED, found.ms.get(UNSAVED, 0) - after_ms)


def _lose(found: GangGoodput) -> None:
    found.move(UNSAVED, LOST, found.ms.get(UNSAVED, 0))


def ratio_ppm(times: dict[str, int]) -> int:
    """The effective training time ratio in millionths: trained, or not lost so far, of all. Without any time: all."""
    total = sum(times.values())
    return (times.get(TRAINED, 0) + times.get(UNSAVED, 0)) * 1_000_000 // total if total else 1_000_000


def fold(events: Iterable[object], *, keeps: bool = True) -> Goodput:
    found = Goodput(keeps=keeps)
    for event in events:
        found.take(event)
    return found
