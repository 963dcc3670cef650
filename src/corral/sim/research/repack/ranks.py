"""In which order gangs are served: shortest remaining time or service, least attained service.

A rank reads the snapshot and the gang's own record, including its past; it does not know seats.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from corral.core.cluster.resources import GPU_MILLI
from corral.core.model import Gang
from corral.core.snapshot import Snapshot

#: The order in which gangs are served, smallest first; equal ones by queue position. The rank of a gang that waits
#: must not depend on the time.
Rank = Callable[[Snapshot, Gang], tuple[Any, ...]]
#: When time alone will change the rank of a gang that runs from now on; None: never.
Change = Callable[[Snapshot, Gang], int | None]


def by_remaining_time(snapshot: Snapshot, gang: Gang) -> tuple[Any, ...]:
    return (snapshot.remaining_ms(gang),)


def by_remaining_service(snapshot: Snapshot, gang: Gang) -> tuple[Any, ...]:
    return (snapshot.remaining_ms(gang) * gpu_milli_of(gang),)


def gpu_milli_of(gang: Gang) -> int:
    """The requested GPUs, in thousandths."""
    demand = gang.demand
    if demand.task.gpus:
        return demand.task.gpus * 1000 * (demand.tasks + demand.spares)
    return demand.charge(demand.tasks).get(GPU_MILLI, 0)


class ByAttainedService:
    """Least attained service in two dimensions (GPUs x time) or by time alone, in few discrete levels.

    Within a level: running gangs, in the order in which they started there; then gangs that ran there and were
    preempted, the latest first; then gangs that have not run there yet, in order of submission. A gang that drops to a
    level while it runs is behind all of these at that time. ``tick_ms``: a level is left after a number of whole ticks,
    unless a plan is made for another reason before.
    """

    def __init__(
        self, limits_gpu_ms: tuple[int, ...] = (3_250_000, 7_200_000), tick_ms: int = 1, by_time: bool = False
    ) -> None:
        self.limits = limits_gpu_ms
        self.tick_ms = tick_ms
        self.by_time = by_time

    def __call__(self, snapshot: Snapshot, gang: Gang) -> tuple[Any, ...]:
        holds = gang.holds_seats
        until_ms = snapshot.now_ms if holds else gang.waiting_since_ms
        if not gang.attempt:
            return (0, 2, until_ms)
        served, milli = self._served(snapshot, gang)
        level = self._level(served)
        before = served - milli * (until_ms - gang.placed_ms) // 1000  # this run, or the last one
        if level == 0 or before >= self.limits[level - 1]:
            began = (gang.placed_ms, 0, gang.turn)
        else:  # it dropped to this level during the run
            ran_ms = served * 1000 // milli - self._needed_ms(level - 1, milli)
            if ran_ms <= 0:
                return (level, 2, until_ms)
            began = (until_ms - ran_ms, 1, gang.rank)
        return (level, 0, *began) if holds else (level, 1, -until_ms, *began)

    def change_ms(self, snapshot: Snapshot, gang: Gang) -> int | None:
        """When a gang that runs from now on drops to the next level."""
        served, milli = self._served(snapshot, gang)
        level = self._level(served)
        if level == len(self.limits):
            return None
        return snapshot.now_ms + self._needed_ms(level, milli) - served * 1000 // milli

    def _served(self, snapshot: Snapshot, gang: Gang) -> tuple[int, int]:
        """What it has received, and how fast it receives: GPUs in thousandths, or always 1000."""
        served, milli = snapshot.served_gpu_ms(gang), max(1, gang.gpu_milli or gpu_milli_of(gang))
        return (served * 1000 // milli, 1000) if self.by_time else (served, milli)

    def _level(self, served: int) -> int:
        return bisect_right(self.limits, served)

    def _needed_ms(self, level: int, gpu_milli: int) -> int:
        """How long it takes to leave a level, in whole ticks."""
        needed_ms = -(-self.limits[level] * 1000 // gpu_milli)
        return -(-needed_ms // self.tick_ms) * self.tick_ms
