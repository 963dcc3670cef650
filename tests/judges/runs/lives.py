"""What became of each gang, folded from the journal alone: when it waited, what it held, who made it leave.

Written for the judges and used by nothing else, so that a mistake of the server's own bookkeeping is not repeated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.core import events as e
from corral.core.cluster.resources import Seat
from corral.core.model import PREEMPTING, JobSpec
from tests.judges.runs.site import Run


@dataclass
class Stay:
    """One attempt: from the moment its seats were taken to the moment they were free again."""

    number: int
    placed_ms: int
    seats: tuple[Seat, ...]
    ended_ms: int | None = None  # None: it still held them at the end of the run
    evicted: e.GangEvicted | None = None

    @property
    def gpus(self) -> int:
        return sum(seat.gpus.bit_count() for seat in self.seats)

    @property
    def was_preempted(self) -> bool:
        return self.evicted is not None and self.evicted.cause in PREEMPTING

    def held_ms(self, begin_ms: int, end_ms: int) -> int:
        """How much of a period it held its seats."""
        until = end_ms if self.ended_ms is None else min(end_ms, self.ended_ms)
        return max(0, until - max(begin_ms, self.placed_ms))


@dataclass
class Life:
    gang: str
    job: str
    spec: JobSpec
    user: str
    submitted_ms: int
    stays: list[Stay] = field(default_factory=list)
    waits: list[tuple[int, int | None]] = field(default_factory=list)  # from when until when it had no seats
    finished_ms: int | None = None
    cancelled: bool = False

    @property
    def queue(self) -> str:
        return self.spec.queue

    @property
    def gpus(self) -> int:
        """The least it can run with."""
        demand = self.spec.gangs[0].demand
        return demand.task.gpus * demand.smallest

    def longest_wait_ms(self, end_ms: int) -> int:
        return max(((end_ms if until is None else until) - since for since, until in self.waits), default=0)

    @property
    def first_ms(self) -> int | None:
        """When it first had seats."""
        return self.stays[0].placed_ms if self.stays else None


def lives(run: Run) -> dict[str, Life]:
    """Every gang of the run by its name. Jobs of one gang only, arrays aside."""
    found: dict[str, Life] = {}
    for event in run.events:
        match event:
            case e.JobSubmitted():
                name = f"{event.job}/{event.spec.gangs[0].role}"
                found[name] = Life(name, event.job, event.spec, event.user, event.at_ms)
                found[name].waits.append((event.at_ms, None))
            case e.GangPlaced() | e.GangRepaired():
                life = found[event.gang]
                _end(life, event.at_ms)
                life.stays.append(Stay(event.attempt, event.at_ms, event.seats + event.spares))
                if life.waits and life.waits[-1][1] is None:
                    life.waits[-1] = (life.waits[-1][0], event.at_ms)
            case e.GangEvicted():
                found[event.gang].stays[-1].evicted = event
            case e.GangStopped():
                _end(found[event.gang], event.at_ms)
            case e.GangRequeued():
                found[event.gang].waits.append((event.at_ms, None))
            case e.GangFinished():
                life = found[event.gang]
                life.finished_ms, life.cancelled = event.at_ms, event.state.value != "succeeded"
                if life.waits and life.waits[-1][1] is None:
                    life.waits[-1] = (life.waits[-1][0], event.at_ms)
    return found


def _end(life: Life, at_ms: int) -> None:
    if life.stays and life.stays[-1].ended_ms is None:
        life.stays[-1].ended_ms = at_ms


def evictions(run: Run) -> Iterator[e.GangEvicted]:
    """Everyone who was made to leave for the sake of another."""
    return (event for event in run.events if isinstance(event, e.GangEvicted) and event.cause in PREEMPTING)
