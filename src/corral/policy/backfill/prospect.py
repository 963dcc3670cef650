"""The predicted future of one node: its seats, their expected ends, and how many tasks fit once they have ended.

Trusts the estimated run times. Knows one node; does not know which gangs wait or hold reservations, except for the
times during which GPUs are reserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from operator import or_

from corral.core.cluster.resources import Amounts, Demand, TaskDemand
from corral.core.cluster.slots import gpu_slots
from corral.core.cluster.topology import Topology
from corral.core.model import NEVER_MS

_MANY = 1 << 20  # tasks that want no GPU: only the amounts bound them

#: (when it is free again, GPUs, amounts) of one seat
Busy = tuple[int, int, Amounts]
#: (from, until, GPUs, amounts) that are reserved
Taken = tuple[int, int, int, Amounts]
#: (time, GPUs that are free from then on, what is left of each amount, in the order of the columns)
Step = tuple[int, int, tuple[int | None, ...]]
#: (time, tasks that fit from then on)
Fit = tuple[int, int]


class Prospect:
    """Of a node, or of several equal ones. Immutable, so that what was computed from it stays valid."""

    def __init__(
        self, topology: Topology, n: int, busy: Sequence[Busy], left: tuple[int | None, ...], names: Mapping[str, int]
    ) -> None:
        self.busy = busy  # seats there now or later; the first to end comes first
        self.left = left  # of each amount, in the order of ``names``
        self._topology = topology
        self._n = n
        self._names = names
        self._fits: dict[tuple[TaskDemand, int, int], list[Fit]] = {}
        self.room_from = self._room_from()

    def _room_from(self) -> list[int]:
        """For each number of GPUs, the time from which that many are unused; never, if there are fewer."""
        gpus = len(self._topology.nodes[self._n].gpus)
        found = [0] * (gpus + 1) + [NEVER_MS] * (self._topology.gpus_max - gpus)
        free = (1 << gpus) - 1
        for end, held, _ in reversed(self.busy):  # the last to end comes first
            free &= ~held
            left = free.bit_count()
            while gpus > left:
                found[gpus] = end
                gpus -= 1
        return found

    def fits(self, demand: Demand, mask: int) -> list[Fit]:
        """How many tasks fit on these GPUs now, when the first seat has ended, and so on."""
        key = (demand.task, demand.tp, mask)
        known = self._fits.get(key)
        if known is None:
            task = demand.task
            if task.gpus and (demand.tp == 1 or self._topology.nvlink_level is not None):
                # equivalent to the general case; what becomes free when is the same for every demand
                counts = self._whole_gpus(task, mask)
            else:
                counts = [
                    (time, self._tasks(demand, mask & free, self.busy[:gone], {}))
                    for time, free, gone in free_in_turn(self.busy)
                ]
            known = self._fits[key] = _where_it_changes(counts)
        return known

    def _whole_gpus(self, task: TaskDemand, mask: int) -> list[Fit]:
        gpus, found = len(self._topology.nodes[self._n].gpus), list[Fit]()
        if not task.amounts and mask == (1 << gpus) - 1:  # equivalent to what follows: it is known from when on
            return [(self.room_from[count * task.gpus], count) for count in range(1, gpus // task.gpus + 1)]
        wanted = [(self._names.get(name, -1), amount) for name, amount in task.amounts]
        for time, free, left in self._steps:
            count = (free & mask).bit_count() // task.gpus
            for at, amount in wanted if count else ():
                has = None if at < 0 else left[at]
                if has is None or has < amount * count:
                    count = 0 if has is None else max(0, has // amount)
            found.append((time, count))
        return found

    @cached_property
    def _steps(self) -> list[Step]:
        """Free GPUs and remaining amounts, as seats end."""
        left, found = list(self.left), list[Step]()
        for time, free, gone in free_in_turn(self.busy):
            if gone:
                for name, amount in self.busy[gone - 1][2]:
                    at = self._names[name]
                    left[at] = (left[at] or 0) + amount
            found.append((time, free, tuple(left)))
        return found

    def fits_beside(
        self, demand: Demand, mask: int, taken: Sequence[Taken], now_ms: int, expected_ms: int
    ) -> list[Fit]:
        """With reserved GPUs: what is free long enough, at every time when a reservation or a seat begins or ends."""
        counts, gone = list[Fit](), 0
        free = [free for _, free, _ in free_in_turn(self.busy)]
        ahead = sorted(taken)
        for time in sorted({0, *(end for end, _, _ in self.busy), *(until for _, until, _, _ in taken)}):
            since = max(time, now_ms)
            until = since + expected_ms
            while gone < len(self.busy) and self.busy[gone][0] <= since:
                gone += 1
            usable, kept = mask & free[gone], dict[str, int]()
            for begin, end, gpus, amounts in ahead:
                if begin >= until:
                    break
                if end > since:
                    usable &= ~gpus
                    for name, amount in amounts:
                        kept[name] = kept.get(name, 0) + amount
            is_possible = usable or not demand.task.wants_gpu
            counts.append((time, self._tasks(demand, usable, self.busy[:gone], kept) if is_possible else 0))
        return _where_it_changes(counts)

    def _tasks(self, demand: Demand, usable: int, gone: Sequence[Busy], kept: Mapping[str, int]) -> int:
        """How many tasks fit on these GPUs once some seats have ended, leaving the amounts that must stay free."""
        task, topology = demand.task, self._topology
        if task.slice_mib:
            gpus = topology.nodes[self._n].gpus
            count = sum(gpus[i].vram_mib // task.slice_mib for i in range(len(gpus)) if usable >> i & 1)
        else:
            count = gpu_slots(topology, demand, self._n, usable) if task.gpus else _MANY
        for name, each in task.amounts if count else ():
            at = self._names.get(name)
            left = None if at is None else self.left[at]
            if left is None:
                return 0
            left -= kept.get(name, 0)
            if each and left < each * count:
                left += sum(amount for _, _, amounts in gone for other, amount in amounts if other == name)
                if left < each * count:
                    count = max(0, left // each)
        return count

    def fits_at(
        self, demand: Demand, mask: int, time: int, expected_ms: int, taken: Sequence[Taken], in_use: Mapping[str, int]
    ) -> int:
        """How many tasks fit on these GPUs from a time on, beside what is reserved and what will be in use."""
        kept = dict(in_use)
        for begin, until, _, amounts in taken:
            if begin < time + expected_ms and until > time:
                for name, amount in amounts:
                    kept[name] = kept.get(name, 0) + amount
        usable = self.free_at(mask, time, expected_ms, taken)
        gone = [each for each in self.busy if each[0] <= time]
        return self._tasks(demand, usable, gone, kept) if usable or not demand.task.wants_gpu else 0

    def free_at(self, mask: int, time: int, expected_ms: int, taken: Sequence[Taken]) -> int:
        """Which of these GPUs are free from a time on for as long as they are needed."""
        for end, gpus, _ in reversed(self.busy):  # the last to end comes first
            if end <= time:
                break
            mask &= ~gpus
        for begin, until, gpus, _ in taken:
            if begin < time + expected_ms and until > time:
                mask &= ~gpus
        return mask


def _where_it_changes(counts: Sequence[Fit]) -> list[Fit]:
    found, last = list[Fit](), 0
    for fit in counts:
        if fit[1] != last:
            found.append(fit)
            last = fit[1]
    return found


def free_in_turn(busy: Sequence[Busy]) -> Iterator[tuple[int, int, int]]:
    """(time, GPUs that are unused from then on, how many seats have ended): now, after the first end, and so on."""
    held = list(accumulate([gpus for _, gpus, _ in reversed(busy)], or_, initial=0))
    times = [0, *[end for end, _, _ in busy]]
    for gone, (time, gpus) in enumerate(zip(times, reversed(held), strict=True)):
        yield time, ~gpus, gone
