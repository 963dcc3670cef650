"""The number of tasks of a demand that each node can hold, and whether that is enough.

Every check whether a demand fits uses this module: refusal at submission, placement, reservations, preemption and
commit differ only in the columns they pass. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from corral.amount_text import quantity, size
from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI, Demand, TaskDemand
from corral.core.cluster.topology import Domain, Topology

NODE_LEVEL = "node"


def slots(capacity: Capacity, demand: Demand, avoid: Sequence[str] = ()) -> list[int]:
    """For every node the number of tasks it could take now, limited to what spread and tp groups allow."""
    found = raw_slots(capacity, demand)
    for name in avoid:
        n = capacity.topology.number.get(name)
        if n is not None:
            found[n] = 0
    return trimmed(capacity.topology, found, demand)


def raw_slots(capacity: Capacity, demand: Demand) -> list[int]:
    task = demand.task
    if task.slice_mib:
        return _slice_slots(capacity, demand)
    topology, free = capacity.topology, capacity.free
    if not task.gpus:
        most = demand.tasks + demand.spares
        return [
            capacity.tasks_by_amounts(n, task.amounts, most) if is_open else 0
            for n, is_open in enumerate(capacity.open)
        ]
    accepted = topology.accepted(task)
    kind = topology.kind
    if demand.tp > 1:
        return [node_slots(capacity, demand, n, free[n]) if free[n] else 0 for n in range(len(free))]
    each = task.gpus
    found = [(mask & accepted[k]).bit_count() // each if mask else 0 for mask, k in zip(free, kind, strict=True)]
    return _cut_to_amounts(capacity, task, found)


def _cut_to_amounts(capacity: Capacity, task: TaskDemand, found: list[int]) -> list[int]:
    """Equivalent to ``tasks_by_amounts`` for every node; without pledges it works on whole columns."""
    if capacity.pledged:
        for n, count in enumerate(found):
            if count:
                found[n] = capacity.tasks_by_amounts(n, task.amounts, count)
        return found
    for name, each in task.amounts:
        column = capacity.left.get(name)
        if column is None:
            return [0] * len(found)
        found = [
            0 if not count or left is None else count if left >= each * count else max(0, left // each)
            for count, left in zip(found, column, strict=True)
        ]
    return found


def node_slots(capacity: Capacity, demand: Demand, node: int, free: int) -> int:
    """The number of tasks one node could take if exactly these of its GPUs were free."""
    task, topology = demand.task, capacity.topology
    if not capacity.open[node]:
        return 0
    if not task.gpus:
        return capacity.tasks_by_amounts(node, task.amounts, demand.tasks + demand.spares)
    count = gpu_slots(topology, demand, node, free & topology.accepted(task)[topology.kind[node]])
    return capacity.tasks_by_amounts(node, task.amounts, count) if count and task.amounts else count


def gpu_slots(topology: Topology, demand: Demand, node: int, usable: int) -> int:
    """The number of tasks that these GPUs of a node allow, with tensor-parallel groups inside NVLink islands."""
    each = demand.task.gpus
    if demand.tp == 1 or topology.nvlink_level is not None:
        return usable.bit_count() // each
    group = min(demand.tp, each) if demand.chunk == 1 else each * demand.chunk
    groups = sum((usable & island).bit_count() // group for island in topology.islands(node))
    return groups * demand.chunk if demand.chunk > 1 else groups // (each // group)


def _slice_slots(capacity: Capacity, demand: Demand) -> list[int]:
    task, topology = demand.task, capacity.topology
    accepted = topology.accepted(task)
    found = [0] * len(topology.nodes)
    for n, free in enumerate(capacity.free):
        usable = free & accepted[topology.kind[n]]
        while usable:
            bit = usable & -usable
            found[n] += topology.nodes[n].gpus[bit.bit_length() - 1].vram_mib // task.slice_mib
            usable ^= bit
    for left, n, _ in capacity.shared_slots(task):
        found[n] += left // task.slice_mib
    return _cut_to_amounts(capacity, task, found)


def trimmed(topology: Topology, found: list[int], demand: Demand) -> list[int]:
    """Limit a column so that plain sums are correct: a maximum per domain for spread, whole tp groups for NVLink."""
    if demand.spread == NODE_LEVEL:
        found = [min(count, demand.spread_max) for count in found]
    elif demand.spread:
        level = topology.level_index(demand.spread)
        for domain in topology.by_level[level] if level is not None else ():
            _cut(found, domain, demand.spread_max, largest_first=demand.within == NODE_LEVEL)
    nvlink = topology.nvlink_level
    if demand.chunk > 1 and nvlink is not None:
        for domain in topology.by_level[nvlink]:
            total = sum(found[domain.lo : domain.hi])
            _cut(found, domain, total - total % demand.chunk, largest_first=True)
    return found


def _cut(found: list[int], domain: Domain, most: int, largest_first: bool) -> None:
    """Limit the total of a domain to ``most``, filling the nodes with the most room first, or those with the least."""
    if sum(found[domain.lo : domain.hi]) <= most:
        return
    for n in sorted(range(domain.lo, domain.hi), key=lambda n: (-found[n] if largest_first else found[n], n)):
        found[n] = min(found[n], most)
        most -= found[n]


def room_by_domain(topology: Topology, found: Sequence[int], level: str) -> list[tuple[int, Domain]]:
    """The number of tasks that each domain of a level can hold. For ``node`` every node is a domain."""
    if level == NODE_LEVEL:
        below = len(topology.levels)
        return [
            (count, Domain(-1, topology.nodes[n].name, below, n, n + 1, topology.above[n][-1]))
            for n, count in enumerate(found)
        ]
    index = topology.level_index(level)
    sums = list(accumulate(found, initial=0))
    return [(sums[d.hi] - sums[d.lo], d) for d in (topology.by_level[index] if index is not None else ())]


def fits(topology: Topology, found: Sequence[int], demand: Demand, size: int) -> bool:
    """Whether ``size`` tasks and the spares fit under the hard constraints of the demand."""
    wanted = size + demand.spares
    if not demand.within:
        return sum(found) >= wanted
    return any(room >= wanted for room, _ in room_by_domain(topology, found, demand.within))


def could_take(capacity: Capacity, demand: Demand, size: int) -> bool:
    """A fast upper bound from the bit sets: False means certainly no room for ``size`` tasks; True means maybe."""
    task = demand.task
    if not task.gpus:
        return True
    wanted = size + demand.spares
    for kind, usable in enumerate(capacity.topology.accepted(task)):
        if usable:
            for free in capacity.sizes_from(kind, task.gpus):
                wanted -= capacity.rooms[kind][free].bit_count() * (free // task.gpus)
                if wanted <= 0:
                    return True
    return False


def describe(task: TaskDemand) -> str:
    """A short text of what a task requests, for messages."""
    parts = [quantity(GPU_MILLI, task.gpus * 1000)] if task.gpus else []
    if task.slice_mib:
        parts.append(f"{size(task.slice_mib)} of a GPU")
    parts += [quantity(name, value) for name, value in task.amounts]
    return ", ".join(parts) or "nothing"
