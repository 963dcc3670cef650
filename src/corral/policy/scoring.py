"""Ways to prefer one node over another for a task: best fit, and the least growth of expected fragmentation.

Each is a score for one node; the highest wins and ties go to the lowest node number. See placement for the default,
which needs no score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import CPU_MILLI, Demand, TaskDemand
from corral.policy.placement import pick_gpus


def gpu_milli_left(capacity: Capacity, node: int, usable: int = -1) -> list[int]:
    """Of each GPU of a node, what is left of it in thousandths; 0 for one that may not be used."""
    left = []
    for i, gpu in enumerate(capacity.topology.nodes[node].gpus):
        bit = 1 << i
        if capacity.free[node] & bit & usable:
            left.append(1000)
        elif capacity.up[node] & bit & usable and not capacity.claimed[node] & bit:
            left.append(capacity.vram.get((node, i), 0) * 1000 // gpu.vram_mib)
        else:
            left.append(0)
    return left


def _choices(capacity: Capacity, demand: Demand, node: int, usable: int) -> Iterable[int]:
    """The GPUs a task might take on a node: each that has room for a slice, or the one pick of whole GPUs."""
    task = demand.task
    if task.slice_mib:
        for i, gpu in enumerate(capacity.topology.nodes[node].gpus):
            left = capacity.vram.get((node, i), gpu.vram_mib if capacity.free[node] >> i & 1 else 0)
            if usable >> i & 1 and capacity.up[node] >> i & 1 and left >= task.slice_mib:
                yield 1 << i
    elif task.gpus:
        yield pick_gpus(capacity.topology, demand, node, capacity.free[node] & usable)
    else:
        yield 0


def best_fit(capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
    """The node, and on it the GPU, with least left over."""
    task = demand.task
    gpus = capacity.topology.nodes[node].gpus
    choice = min(
        _choices(capacity, demand, node, usable),
        key=lambda mask: (capacity.vram.get((node, mask.bit_length() - 1), 1 << 60), mask),
        default=0,
    )
    milli = task.slice_mib * 1000 // gpus[choice.bit_length() - 1].vram_mib if task.slice_mib else task.gpus * 1000
    left = sum(gpu_milli_left(capacity, node)) - milli
    cpu = capacity.amount_left(node, CPU_MILLI) or 0
    cpu_left = cpu - (dict(task.amounts).get(CPU_MILLI, 0))
    return -(left * 1_000_000 // max(1, 1000 * len(gpus)) + cpu_left // 100), choice


class LeastFragmentation:
    """Expected-fragmentation descent: how much of a node's free GPU could the typical tasks not use, before and after.

    ``typical`` are the tasks one expects, each with its weight. The task goes where the expectation grows least.
    """

    def __init__(self, typical: Sequence[tuple[TaskDemand, int]]) -> None:
        self.typical = tuple(typical)
        self._total = max(1, sum(weight for _, weight in typical))

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        before = self.fragmented_milli(capacity, node)
        best: tuple[int, int] | None = None
        for choice in _choices(capacity, demand, node, usable):
            mark = capacity.mark()
            capacity.take(node, choice, demand.task.slice_mib, demand.task.amounts)
            after = self.fragmented_milli(capacity, node)
            capacity.undo(mark)
            score = int(1000 / (1 + exp(-max(-60.0, min(60.0, (before - after) / 1000)))))
            if best is None or score > best[0]:
                best = (score, choice)
        assert best is not None, "a node was scored that cannot take the task"
        return best

    def fragmented_milli(self, capacity: Capacity, node: int) -> float:
        """The free GPU on a node that a task drawn from the typical ones could not use, in expectation."""
        left = gpu_milli_left(capacity, node)
        free = sum(left)
        if not free:
            return 0.0
        wasted = 0
        for task, weight in self.typical:
            wasted += weight * (free - _usable_milli(capacity, node, task, left))
        return wasted / self._total


def _usable_milli(capacity: Capacity, node: int, task: TaskDemand, left: Sequence[int]) -> int:
    """How much of what is left a kind of task could use; nothing if it does not fit at all."""
    if not task.wants_gpu or not capacity.tasks_by_amounts(node, task.amounts, 1):
        return 0
    gpus = capacity.topology.nodes[node].gpus
    if task.slice_mib:
        return sum(
            milli for gpu, milli in zip(gpus, left, strict=True)
            if task.accepts(gpu) and milli * gpu.vram_mib >= task.slice_mib * 1000
        )  # fmt: skip
    whole = sum(1 for gpu, milli in zip(gpus, left, strict=True) if milli == 1000 and task.accepts(gpu))
    return whole * 1000 if whole >= task.gpus else 0
