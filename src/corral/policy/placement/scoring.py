"""Ways to prefer one node over another for a task: best fit, packing, the least growth of expected fragmentation.

Each is a score for one node that depends on nothing but the task and that node; the highest wins and ties go to the
lowest node number. ``Remembered`` makes any of them quick. Rules taken from publications are kept to the letter, with
their oddities, in classes of their own. See placement for the default, which needs no score.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, filterfalse
from math import exp
from operator import ne
from typing import Any

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import CPU_MILLI, Demand, TaskDemand
from corral.core.cluster.topology import Topology
from corral.policy.placement.seating import Scorer, pick_gpus

# ---- what a node has -----------------------------------------------------------------------------------------------


def gpu_mib_left(capacity: Capacity, node: int) -> list[int]:
    """Of each GPU of a node, the MiB that a new task could use; all of them only if the GPU is not shared."""
    free, shared, vram = capacity.free[node], capacity.up[node] & ~capacity.claimed[node], capacity.vram
    return [
        gpu.vram_mib if free >> i & 1 else vram.get((node, i), 0) if shared >> i & 1 else 0
        for i, gpu in enumerate(capacity.topology.layouts[capacity.topology.kind[node]])
    ]


def gpu_milli_left(capacity: Capacity, node: int) -> list[int]:
    """The same in thousandths of each GPU."""
    gpus = capacity.topology.layouts[capacity.topology.kind[node]]
    return [mib * 1000 // gpu.vram_mib for gpu, mib in zip(gpus, gpu_mib_left(capacity, node), strict=True)]


def choices(capacity: Capacity, demand: Demand, node: int, usable: int) -> Iterable[int]:
    """The GPUs a task might take on a node: each that has room for a slice, or the one pick of whole GPUs."""
    task = demand.task
    if task.slice_mib:
        for i, mib in enumerate(gpu_mib_left(capacity, node)):
            if mib >= task.slice_mib and usable >> i & 1:
                yield 1 << i
    elif task.gpus:
        yield pick_gpus(capacity.topology, demand, node, capacity.free[node] & usable)
    else:
        yield 0


def _tightest(capacity: Capacity, demand: Demand, node: int, usable: int) -> int:
    """Of the GPUs a task might take on a node those with least left; of equal ones the lowest."""
    left = capacity.vram
    return min(
        choices(capacity, demand, node, usable),
        key=lambda mask: (left.get((node, mask.bit_length() - 1), 1 << 60), mask),
        default=0,
    )


def _milli(capacity: Capacity, task: TaskDemand, node: int, gpus: int) -> int:
    """What a task uses of these GPUs, in thousandths."""
    if not task.slice_mib:
        return task.gpus * 1000
    return task.slice_mib * 1000 // capacity.topology.nodes[node].gpus[gpus.bit_length() - 1].vram_mib


def _cpu_left(capacity: Capacity, node: int) -> int:
    return capacity.amount_left(node, CPU_MILLI) or 0


def _cpu(task: TaskDemand) -> int:
    return dict(task.amounts).get(CPU_MILLI, 0)


# ---- best fit ------------------------------------------------------------------------------------------------------


def best_fit(capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
    """The node, and on it the GPU, with least left over."""
    choice = _tightest(capacity, demand, node, usable)
    gpus = len(capacity.topology.nodes[node].gpus)
    left = sum(gpu_milli_left(capacity, node)) - _milli(capacity, demand.task, node, choice)
    cpu_left = _cpu_left(capacity, node) - _cpu(demand.task)
    return -(left * 1_000_000 // max(1, 1000 * gpus) + cpu_left // 100), choice


class PublishedBestFit:
    """BestFit as in FGD (ATC'23): half the CPU and half the GPU left after, each as a part of the largest node's.

    In whole points of 100, by the publication's own floating-point arithmetic: many nodes tie. There the points are
    then spread over 0..100 by the worst and the best of the nodes. That never changes which nodes are best (only the
    best get 100), so it is left out here.
    """

    def __init__(self, cpu_milli_max: int = 128_000, gpu_milli_max: int = 8_000) -> None:
        self.cpu_milli_max, self.gpu_milli_max = cpu_milli_max, gpu_milli_max

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        choice = _tightest(capacity, demand, node, usable)
        gpu_left = sum(gpu_milli_left(capacity, node)) - _milli(capacity, demand.task, node, choice)
        cpu_left = _cpu_left(capacity, node) - _cpu(demand.task)
        left = cpu_left / self.cpu_milli_max * 0.5 + gpu_left / self.gpu_milli_max * 0.5
        return int((1.0 - left) * 100), choice


class PublishedDotProduct(PublishedBestFit):
    """DotProd as in FGD (ATC'23): least of what is wanted times what is left before, CPU and GPU, in points of 100."""

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        choice = _tightest(capacity, demand, node, usable)
        cpu = _cpu_left(capacity, node) / self.cpu_milli_max * (_cpu(demand.task) / self.cpu_milli_max)
        wanted = _milli(capacity, demand.task, node, choice) / self.gpu_milli_max
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
        choice = _tightest(capacity, demand, node, usable)
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
                (task, weight) for task, weight in self.typical
                if all(each in most[name] for name, each in task.amounts)
            ]  # fmt: skip
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


# ---- remembering ---------------------------------------------------------------------------------------------------

NO_ROOM = -(1 << 99)
_TASKS_MAX, _CHANGES_MAX = 4_096, 100_000
_Key = tuple[int, int]  # (node, GPU)


class Remembered:
    """A scorer that is evaluated again only for nodes that have changed since it was last used for such a task.

    Equivalent to evaluating every node. Finds changes itself, by the columns that a score may depend on, so that it can
    be used with any capacity at any time.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._topology: Topology | None = None
        self._columns: list[list[Any]] = []
        self._vram: dict[_Key, int] = {}
        self._shared: list[tuple[int | None, ...]] = []  # by node, what is left of the GPUs that are shared
        self._changes: list[int] = []  # nodes that have changed, in order
        self._known: dict[TaskDemand, _Scores] = {}

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        return self.scorer(capacity, demand, node, usable)

    def best(self, capacity: Capacity, demand: Demand) -> tuple[int, int] | None:
        """The node that scores highest and the GPUs to take there; None if no node has room."""
        self._look(capacity)
        nodes, task = len(capacity.topology.nodes), demand.task
        known = self._known.get(task)
        if known is None:
            known = self._known[task] = _Scores(nodes)
            stale: Iterable[int] = range(nodes)
        else:
            stale = set(self._changes[known.place :])
        known.place = len(self._changes)
        answers: dict[
            tuple[Any, ...], tuple[int, int]
        ] = {}  # nodes that are equal in all that matters have equal scores
        for n in stale:
            alike = (capacity.topology.kind[n], self._shared[n], *[column[n] for column in self._columns])
            answer = answers.get(alike)
            if answer is None:
                answer = answers[alike] = self._ask(capacity, demand, n)
            known.scores[n], known.gpus[n] = answer
        score = max(known.scores, default=NO_ROOM)
        if score == NO_ROOM:
            return None
        node = known.scores.index(score)
        return node, known.gpus[node]

    def _ask(self, capacity: Capacity, demand: Demand, node: int) -> tuple[int, int]:
        usable = capacity.topology.accepted(demand.task)[capacity.topology.kind[node]]
        if not _has_room(capacity, demand, node, usable):
            return NO_ROOM, 0
        return self.scorer(capacity, demand, node, usable)

    def _look(self, capacity: Capacity) -> None:
        """Record the nodes that have changed."""
        columns, vram = _columns(capacity), capacity.vram.copy()
        every = range(len(capacity.topology.nodes))
        changed: set[int] = set()
        if (
            capacity.topology is not self._topology
            or len(self._changes) > _CHANGES_MAX
            or len(self._known) > _TASKS_MAX
        ):
            self._topology, self._changes, self._known = capacity.topology, [], {}
            self._vram, self._shared = {}, [()] * len(every)
        else:
            for old, new in zip(self._columns, columns, strict=True):
                if old != new:
                    changed.update(compress(every, map(ne, old, new)))
        for n in {n for n, _ in _differences(self._vram, vram)}:
            self._shared[n] = tuple(vram.get((n, i)) for i in range(len(capacity.topology.nodes[n].gpus)))
            changed.add(n)
        self._changes += changed
        self._columns, self._vram = columns, vram


class _Scores:
    """The last scores of all nodes for one kind of task."""

    __slots__ = ("gpus", "place", "scores")

    def __init__(self, nodes: int) -> None:
        self.scores, self.gpus = [NO_ROOM] * nodes, [0] * nodes
        self.place = 0  # in the list of changes


def _columns(capacity: Capacity) -> list[list[Any]]:
    """Everything about nodes that a score may depend on, a column each; all but the GPUs that are shared."""
    left: list[list[Any]] = [column.copy() for column in capacity.left.values()]
    if capacity.pledged:
        nodes = range(len(capacity.topology.nodes))
        left = [[capacity.amount_left(n, name) for n in nodes] for name in capacity.left]
    return [capacity.open.copy(), capacity.up.copy(), capacity.claimed.copy(), capacity.free.copy(), *left]


def _differences(old: Mapping[_Key, int], new: Mapping[_Key, int]) -> Iterator[_Key]:
    """Keys that are in one only, or have another value."""
    yield from compress(new, map(ne, new.values(), map(old.get, new)))
    yield from filterfalse(new.__contains__, old)


def _has_room(capacity: Capacity, demand: Demand, node: int, usable: int) -> bool:
    """Whether one task fits on a node."""
    task = demand.task
    if task.gpus:
        fits = (capacity.free[node] & usable).bit_count() >= task.gpus
    elif task.slice_mib:
        fits = any(choices(capacity, demand, node, usable))
    else:
        fits = capacity.open[node]
    return fits and capacity.tasks_by_amounts(node, task.amounts, 1) > 0
