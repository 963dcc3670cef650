"""Ways to prefer one node over another for a task: what a score can read of a node, and best fit.

A score is for one node and depends on nothing but the task and that node; the highest wins and ties go to the lowest
node number. ``Remembered`` makes any of them quick. See ``seating`` for the default, which needs no score; scores of
publications are in sim/research.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import compress, filterfalse
from operator import ne
from typing import Any

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import CPU_MILLI, Demand, TaskDemand
from corral.core.cluster.topology import Topology
from corral.policy.placement.seating import Scorer, pick_gpus

# ---- what a node has -----------------------------------------------------------------------------------------------


def gpu_mib_left(capacity: Capacity, node: int) -> list[int]:
    """Of each GPU of a node, the MiB that a new task could use; all of them only if the GPU is not shared."""
    free = capacity.free[node]
    shared = capacity.up[node] & ~capacity.claimed[node]
    vram = capacity.vram
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


def tightest(capacity: Capacity, demand: Demand, node: int, usable: int) -> int:
    """Of the GPUs a task might take on a node those with least left; of equal ones the lowest."""
    left = capacity.vram
    return min(
        choices(capacity, demand, node, usable),
        key=lambda mask: (left.get((node, mask.bit_length() - 1), 1 << 60), mask),
        default=0,
    )


def gpu_milli_taken(capacity: Capacity, task: TaskDemand, node: int, gpus: int) -> int:
    """What a task uses of these GPUs, in thousandths."""
    if not task.slice_mib:
        return task.gpus * 1000
    return task.slice_mib * 1000 // capacity.topology.nodes[node].gpus[gpus.bit_length() - 1].vram_mib


def cpu_milli_left(capacity: Capacity, node: int) -> int:
    return capacity.amount_left(node, CPU_MILLI) or 0


def cpu_milli_wanted(task: TaskDemand) -> int:
    return dict(task.amounts).get(CPU_MILLI, 0)


# ---- best fit ------------------------------------------------------------------------------------------------------


def best_fit(capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
    """The node, and on it the GPU, with least left over."""
    choice = tightest(capacity, demand, node, usable)
    gpus = len(capacity.topology.nodes[node].gpus)
    left = sum(gpu_milli_left(capacity, node)) - gpu_milli_taken(capacity, demand.task, node, choice)
    cpu_left = cpu_milli_left(capacity, node) - cpu_milli_wanted(demand.task)
    return -(left * 1_000_000 // max(1, 1000 * gpus) + cpu_left // 100), choice


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
            self._topology = capacity.topology
            self._changes = []
            self._known = {}
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
