"""Scores of publications for the nodes of a task: best fit, dot product, packing, fragmentation.

Kept to the letter, with their oddities and their floating-point arithmetic. Pure, like every score: see
``policy.placement.scoring``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.cluster.topology import Topology
from corral.policy.placement.scoring import (
    choices,
    cpu_milli_left,
    cpu_milli_wanted,
    gpu_mib_left,
    gpu_milli_left,
    gpu_milli_taken,
    tightest,
)


class PublishedBestFit:
    """BestFit as in FGD (ATC'23): half the CPU and half the GPU left after, each as a part of the largest node's.

    In whole points of 100, by the publication's own floating-point arithmetic: many nodes tie. There the points are
    then spread over 0..100 by the worst and the best of the nodes. That never changes which nodes are best (only the
    best get 100), so it is left out here.
    """

    def __init__(self, cpu_milli_max: int = 128_000, gpu_milli_max: int = 8_000) -> None:
        self.cpu_milli_max, self.gpu_milli_max = cpu_milli_max, gpu_milli_max

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        choice = tightest(capacity, demand, node, usable)
        gpu_left = sum(gpu_milli_left(capacity, node)) - gpu_milli_taken(capacity, demand.task, node, choice)
        cpu_left = cpu_milli_left(capacity, node) - cpu_milli_wanted(demand.task)
        left = cpu_left / self.cpu_milli_max * 0.5 + gpu_left / self.gpu_milli_max * 0.5
        return int((1.0 - left) * 100), choice


class PublishedDotProduct(PublishedBestFit):
    """DotProd as in FGD (ATC'23): least of what is wanted times what is left before, CPU and GPU, in points of 100."""

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        choice = tightest(capacity, demand, node, usable)
        cpu = cpu_milli_left(capacity, node) / self.cpu_milli_max * (cpu_milli_wanted(demand.task) / self.cpu_milli_max)
        wanted = gpu_milli_taken(capacity, demand.task, node, choice) / self.gpu_milli_max
        gpu = sum(gpu_milli_left(capacity, node)) / self.gpu_milli_max * wanted
        return int(100 * (1.0 - (cpu + gpu) / 2)), choice


class PublishedPacking:
    """GpuPacking as in FGD (ATC'23): GPUs in use before free ones, nodes in use before free ones, in points of 100.

    A task without GPUs goes to the first node that has room for it.
    """

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        task = demand.task
        if not task.wants_gpu:
            return 0, 0
        choice = tightest(capacity, demand, node, usable)
        free, gpus = capacity.free[node].bit_count(), len(capacity.topology.nodes[node].gpus)
        if free == gpus:
            return max(33 - free, free), choice
        opened = (choice & capacity.free[node]).bit_count()
        if opened:
            return max(50 - opened, 33), choice
        shared = gpu_milli_left(capacity, node)[choice.bit_length() - 1]
        return max(100 - shared * 100 // 1000 // 10, 50), choice


# ---- fragmentation -------------------------------------------------------------------------------------------------


class LeastFragmentation:
    """Expected-fragmentation descent: how much of a node's free GPU could the typical tasks not use, before and after.

    ``typical`` are the tasks one expects, each with its weight. The task goes where the expectation grows least.
    """

    def __init__(self, typical: Sequence[tuple[TaskDemand, int]]) -> None:
        self.typical = tuple(typical)
        self.total = max(1, sum(weight for _, weight in typical))
        names = sorted({name for task, _ in typical for name, _ in task.amounts})
        #: by name of an amount, what the typical tasks want of it, in rising order
        self._wants = {
            name: sorted({each for task, _ in typical for other, each in task.amounts if other == name})
            for name in names
        }
        self._topology: Topology | None = None
        self._takers: dict[tuple[int, ...], _Takers] = {}

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        task, kind = demand.task, capacity.topology.kind[node]
        layout = capacity.topology.layouts[kind]
        left, taken = gpu_mib_left(capacity, node), dict(task.amounts)
        amounts = [(capacity.amount_left(node, name), taken.get(name, 0)) for name in self._wants]
        before = self._who_could_take(capacity, kind, [have for have, _ in amounts]).wasted(left)
        then = self._who_could_take(capacity, kind, [None if have is None else have - each for have, each in amounts])
        best: tuple[int, int] | None = None
        tried = set()
        for choice in choices(capacity, demand, node, usable):
            after = list(left)
            if task.slice_mib:
                i = choice.bit_length() - 1
                after[i] -= task.slice_mib
                if (alike := (layout[i], after[i])) in tried:
                    continue  # a GPU equal to one that was tried before: the same score, and the first of them is kept
                tried.add(alike)
            else:
                after = [0 if choice >> i & 1 else mib for i, mib in enumerate(left)]
            score = self.score(before - then.wasted(after))
            if best is None or score > best[0]:
                best = (score, choice)
        assert best is not None, "a node was scored that cannot take the task"
        return best

    def score(self, gain: int) -> int:
        """The score of a reduction of waste (GPU thousandths times weight; mostly negative)."""
        return gain

    def wasted(self, capacity: Capacity, node: int) -> int:
        """The free GPU on a node that typical tasks could not use: thousandths, times the weight of each such task."""
        amounts = [capacity.amount_left(node, name) for name in self._wants]
        takers = self._who_could_take(capacity, capacity.topology.kind[node], amounts)
        return takers.wasted(gpu_mib_left(capacity, node))

    def _who_could_take(self, capacity: Capacity, kind: int, amounts: Sequence[int | None]) -> _Takers:
        """Of the typical tasks those that these amounts allow on a kind of node. There are few different answers."""
        if capacity.topology is not self._topology:
            self._topology, self._takers = capacity.topology, {}
        met = [
            0 if have is None else bisect_right(wants, have)
            for have, wants in zip(amounts, self._wants.values(), strict=True)
        ]
        key = (kind, *met)
        found = self._takers.get(key)
        if found is None:
            most = {name: wants[:count] for (name, wants), count in zip(self._wants.items(), met, strict=True)}
            allowed = [
                (task, weight)
                for task, weight in self.typical
                if all(each in most[name] for name, each in task.amounts)
            ]
            found = self._takers[key] = _Takers(capacity.topology, kind, allowed, self.total)
        return found


class _Takers:
    """Tasks that a kind of node could take as far as its amounts go, and what they could use of GPUs left there."""

    def __init__(self, topology: Topology, kind: int, tasks: Sequence[tuple[TaskDemand, int]], total: int) -> None:
        self._vram = [gpu.vram_mib for gpu in topology.layouts[kind]]
        self._total = total
        self._slices = [(t.slice_mib, topology.accepted(t)[kind], weight) for t, weight in tasks if t.slice_mib]
        self._wholes = [(t.gpus, topology.accepted(t)[kind], weight) for t, weight in tasks if t.gpus]
        self._by_slices: dict[tuple[int, int], int] = {}  # (GPU, MiB left) -> weight of the slices that fit
        self._by_wholes: dict[int, int] = {}  # free GPUs -> how many of them each task could use, times its weight

    def wasted(self, left: Sequence[int]) -> int:
        """Equivalent to asking every task in turn what it could use of all the GPUs together.

        A slice could use what is left of every GPU that has room for it, so the GPUs can be asked one by one.
        """
        free = used = whole = 0
        for i, mib in enumerate(left):
            if mib:
                milli = mib * 1000 // self._vram[i]
                free += milli
                weight = self._by_slices.get((i, mib))
                used += milli * (self._weight_of_slices(i, mib) if weight is None else weight)
                if mib == self._vram[i]:
                    whole |= 1 << i
        if whole:
            count = self._by_wholes.get(whole)
            used += 1000 * (self._used_by_wholes(whole) if count is None else count)
        return free * self._total - used

    def _weight_of_slices(self, i: int, mib: int) -> int:
        found = sum(weight for wanted, mask, weight in self._slices if wanted <= mib and mask >> i & 1)
        self._by_slices[i, mib] = found
        return found

    def _used_by_wholes(self, whole: int) -> int:
        counts = [((whole & mask).bit_count(), wanted, weight) for wanted, mask, weight in self._wholes]
        found = self._by_wholes[whole] = sum(count * weight for count, wanted, weight in counts if count >= wanted)
        return found


class FragmentationDescent(LeastFragmentation):
    """FGD as published (ATC'23): the growth of fragmentation in whole points of 100 through a sigmoid; many tie."""

    def score(self, gain: int) -> int:
        return int(1.0 / (1.0 + exp(-(gain / self.total / 1000))) * 100)
