"""Estimates of run times, learned from ended jobs: no oracle, only what a site would know at that time.

Jobs of one user and size resemble each other most, then jobs of one team and size, then of one size. Until enough of
them have ended, there is no estimate. Reads events; does not know how long a job really takes.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from corral.core import events as e
from corral.core.gang_id import element_of
from corral.core.model import GangState, JobSpec
from corral.sim.run import Arrival

ENOUGH = 5  # ended jobs needed for an estimate
REMEMBERED = 200  # run times kept for each kind, the latest
PERCENT = 80  # fraction of similar jobs that ended within the estimate: too short is worse than too long

Kind = tuple[str, ...]


class _Lengths:
    """The latest run times of one kind of job."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length_ms: int) -> None:
        if len(self._latest) == REMEMBERED:
            self._sorted.remove(self._latest.popleft())
        self._latest.append(length_ms)
        insort(self._sorted, length_ms)

    def expected_ms(self) -> int | None:
        if len(self._sorted) < ENOUGH:
            return None
        return self._sorted[min(len(self._sorted) - 1, len(self._sorted) * PERCENT // 100)]


class Learner:
    """Observes ended jobs, and estimates the run time of new ones."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[Kind, ...]] = {}  # job -> the kinds it belongs to
        self._since: dict[str, int] = {}  # gang -> start of its current attempt
        self._ran: dict[str, int] = {}  # gang -> its run time in all attempts
        self._lengths: dict[Kind, _Lengths] = {}

    def admit(self, arrival: Arrival) -> JobSpec:
        """The job to submit, with an estimate if there is one."""
        spec = arrival.spec
        size = str(sum(gang.demand.tasks * gang.demand.task.gpus for gang in spec.gangs))
        kinds = ((spec.queue, arrival.user, size), (spec.queue, size), (size,))
        self._kinds[arrival.id] = kinds
        known = [self._lengths[kind].expected_ms() for kind in kinds if kind in self._lengths]
        expected = next((each for each in known if each is not None), None)
        return spec if expected is None else replace(spec, estimate_ms=_rounded(expected))

    def __call__(self, events: Sequence[e.Event]) -> None:
        for event in events:
            kind = type(event)
            if kind is e.GangStarted:
                self._since[event.gang] = event.at_ms  # type: ignore[union-attr]
            elif kind is e.GangStopped or kind is e.GangRepaired:
                self._stopped(event)  # type: ignore[arg-type]
            elif kind is e.GangFinished:
                self._finished(event)  # type: ignore[arg-type]

    def _stopped(self, event: e.GangStopped | e.GangRepaired) -> None:
        since = self._since.pop(event.gang, event.at_ms)
        self._ran[event.gang] = self._ran.get(event.gang, 0) + event.at_ms - since

    def _finished(self, event: e.GangFinished) -> None:
        ran = self._ran.pop(event.gang, 0)
        kinds = self._kinds.pop(element_of(event.gang), ())
        if event.state is GangState.SUCCEEDED:
            for kind in kinds:
                self._lengths.setdefault(kind, _Lengths()).add(ran)


def _rounded(length_ms: int) -> int:
    """Rounded up to two significant binary digits, so that jobs of similar length have one shape."""
    step = 1 << max(0, length_ms.bit_length() - 3)
    return max(1, -(-length_ms // step) * step)
