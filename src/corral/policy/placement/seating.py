"""Placement of a gang: as close together as the topology allows, in the tightest domain that holds it.

The innermost domain that holds the whole gang, and of those the fullest; inside it as few parts as possible. Small
work goes where little else fits, so that whole nodes and racks stay free for large gangs. Places one gang at a
time; does not know queues, order or other waiting gangs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

from msgspec import Struct

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.slots import NODE_LEVEL, could_take, gpu_slots, raw_slots, slots, trimmed
from corral.core.cluster.topology import Domain, Topology
from corral.core.plan import Spread


class Bounds:
    """Free GPUs and amounts that may not be used because they are reserved for others."""

    __slots__ = ("amounts", "barred", "nodes", "partly")

    def __init__(
        self, barred: Mapping[int, int], amounts: Mapping[int, Mapping[str, int]], whole: Sequence[int]
    ) -> None:
        self.barred = barred  # node -> GPUs that may not be used
        self.amounts = amounts  # node -> amounts that must be left
        self.nodes = 0  # all these nodes, as a bit set
        self.partly: list[int] = []  # nodes with GPUs that may be used
        for n, gpus in barred.items():
            self.nodes |= 1 << n
            if whole[n] & ~gpus or not whole[n]:
                self.partly.append(n)

    def usable(self, node: int) -> int:
        return ~self.barred.get(node, 0)

    def most(self, capacity: Capacity, demand: Demand, node: int) -> int:
        """How many tasks the amounts allow there, minus what must stay free."""
        most = demand.tasks + demand.spares
        kept = self.amounts.get(node, {})
        for name, each in demand.task.amounts:
            if each:
                most = min(most, max(0, (capacity.amount_left(node, name) or 0) - kept.get(name, 0)) // each)
        return most

    def may_leave(self, capacity: Capacity, demand: Demand, wanted: int) -> bool:
        """As `could_take`, of what is not barred: False means certainly no room for this many tasks."""
        each, topology = demand.task.gpus, capacity.topology
        if not each or not self.barred:
            return True
        accepted = topology.accepted(demand.task)
        for kind, usable in enumerate(accepted):
            if usable:
                for free in capacity.sizes_from(kind, each):
                    wanted -= (capacity.rooms[kind][free] & ~self.nodes).bit_count() * (free // each)
                    if wanted <= 0:
                        return True
        for n in self.partly:
            usable = capacity.free[n] & self.usable(n) & accepted[topology.kind[n]]
            wanted -= usable.bit_count() // each
        return wanted <= 0


FREE = Bounds({}, {}, ())

#: A way to prefer nodes: (capacity, demand, node, usable GPUs) -> (score, GPUs to take); the highest score wins.
Scorer = Callable[[Capacity, Demand, int, int], tuple[int, int]]


#: How many of the tasks that each node could hold may be used, by node number.
Cut = Callable[[Sequence[int]], list[int]]


@runtime_checkable
class Chooser(Protocol):
    """A scorer that can name the best of all nodes itself, where nothing is barred: (node, GPUs to take), or None."""

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int, /) -> tuple[int, int]: ...

    def best(self, capacity: Capacity, demand: Demand) -> tuple[int, int] | None: ...


class Seating(Struct, frozen=True, gc=False):
    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...]

    @property
    def everything(self) -> tuple[Seat, ...]:
        return self.seats + self.spares


def find_seats(
    capacity: Capacity,
    demand: Demand,
    size: int,
    avoid: Sequence[str] = (),
    bounds: Bounds = FREE,
    scorer: Scorer | None = None,
    widest: int = 0,
    cut: Cut | None = None,
) -> Seating | None:
    """Seats for ``size`` tasks and the spares in rank order, or None. ``widest``: the outermost allowed level."""
    if not could_take(capacity, demand, size) or not bounds.may_leave(capacity, demand, size + demand.spares):
        return None
    if scorer is not None and cut is None and not demand.within and not demand.spread and demand.tp == 1:
        return _by_score(capacity, demand, size, avoid, bounds, scorer)
    wanted = size + demand.spares
    if wanted == 1 and demand.task.gpus and demand.chunk == 1 and cut is None:
        # equivalent to the general case below for one task; it looks only at nodes with just enough free GPUs
        seat = _tightest_seat(capacity, demand, avoid, bounds)
        return None if seat is None else Seating((seat,), ())
    if wanted == 1 and demand.task.slice_mib and cut is None:
        seat = _tightest_slice(capacity, demand, avoid, bounds)
        if seat is not None:
            return Seating((seat,), ())
    column = bounded_slots(capacity, demand, avoid, bounds, cut)
    counts = choose(capacity.topology, column, demand, wanted, widest)
    if counts is None:
        return None
    seats = seats_on(capacity, demand, counts, bounds)
    return Seating(seats[:size], seats[size:])


def bounded_slots(
    capacity: Capacity, demand: Demand, avoid: Sequence[str], bounds: Bounds, cut: Cut | None = None
) -> list[int]:
    """How many tasks each node can hold. Spread and tp groups apply to what the bounds and the cut leave."""
    if not bounds.barred and cut is None:
        return slots(capacity, demand, avoid)
    topology, task = capacity.topology, demand.task
    column = raw_slots(capacity, demand)
    accepted = topology.accepted(task)
    for name in avoid:
        if name in topology.number:
            column[topology.number[name]] = 0
    for n in bounds.barred:
        if column[n]:
            most = bounds.most(capacity, demand, n)
            if task.gpus:
                usable = capacity.free[n] & bounds.usable(n) & accepted[topology.kind[n]]
                most = min(most, gpu_slots(topology, demand, n, usable))
            elif task.slice_mib:
                most = 0  # slices do not share nodes with a reservation
            column[n] = min(column[n], most)
    return trimmed(topology, column if cut is None else cut(column), demand)


# ---- one task ------------------------------------------------------------------------------------------------------


def _tightest_seat(capacity: Capacity, demand: Demand, avoid: Sequence[str], bounds: Bounds) -> Seat | None:
    topology, task = capacity.topology, demand.task
    accepted = topology.accepted(task)
    avoided = [topology.number[name] for name in avoid if name in topology.number]
    barred = bounds.nodes
    for n in avoided:
        barred |= 1 << n
    kinds = [(kind, usable) for kind, usable in enumerate(accepted) if usable]
    sizes = 0  # numbers of free GPUs on suitable nodes, as a bit set
    for kind, _ in kinds:
        sizes |= capacity.sizes[kind]
    sizes = sizes >> task.gpus << task.gpus
    while sizes:
        low = sizes & -sizes
        sizes ^= low
        for kind, usable in kinds:
            nodes = capacity.rooms[kind][low.bit_length() - 1] & ~barred
            seat = _first_that_fits(capacity, demand, nodes, usable) if nodes else None
            if seat is not None:
                return seat
    for n in bounds.partly:
        if n not in avoided and bounds.most(capacity, demand, n):
            seat = _first_that_fits(capacity, demand, 1 << n, accepted[topology.kind[n]] & bounds.usable(n))
            if seat is not None:
                return seat
    return None


def _tightest_slice(capacity: Capacity, demand: Demand, avoid: Sequence[str], bounds: Bounds) -> Seat | None:
    """Preemptor on a GPU that is shared already, wherever it is, before another one is opened."""
    task, nodes = demand.task, capacity.topology.nodes
    for _, n, gpu in sorted(capacity.shared_slots(task)):
        if nodes[n].name not in avoid and n not in bounds.barred and capacity.tasks_by_amounts(n, task.amounts, 1):
            return Seat(nodes[n].name, 1 << gpu, task.slice_mib)
    return None


def _first_that_fits(capacity: Capacity, demand: Demand, nodes: int, usable: int) -> Seat | None:
    """The lowest-numbered of these nodes that has the GPUs and the amounts."""
    task, topology = demand.task, capacity.topology
    while nodes:
        low = nodes & -nodes
        n = low.bit_length() - 1
        mask = capacity.free[n] & usable
        if gpu_slots(topology, demand, n, mask) and (not task.amounts or capacity.tasks_by_amounts(n, task.amounts, 1)):
            return Seat(topology.nodes[n].name, pick_gpus(topology, demand, n, mask))
        nodes ^= low
    return None


def pick_gpus(topology: Topology, demand: Demand, node: int, usable: int) -> int:
    """Which GPUs a task takes: one island if it can, and the island with least left over."""
    each = demand.task.gpus
    if usable.bit_count() == each:
        return usable
    islands = topology.islands(node)
    fitting = [(usable & island) for island in islands if (usable & island).bit_count() >= each]
    if fitting:
        return _lowest(min(fitting, key=lambda mask: (mask.bit_count(), mask)), each)
    if demand.tp == 1 or topology.nvlink_level is not None:
        return _lowest(usable, each)
    picked = 0
    for island in sorted(islands, key=lambda island: (-(usable & island).bit_count(), island)):
        groups = min((usable & island).bit_count() // demand.tp, (each - picked.bit_count()) // demand.tp)
        picked |= _lowest(usable & island, groups * demand.tp)
    return picked


def _lowest(mask: int, count: int) -> int:
    picked = 0
    for _ in range(count):
        low = mask & -mask
        picked |= low
        mask ^= low
    return picked


# ---- many tasks ----------------------------------------------------------------------------------------------------


def choose(
    topology: Topology, column: Sequence[int], demand: Demand, wanted: int, widest: int = 0
) -> list[tuple[int, int]] | None:
    """How many tasks go to which node, in node order; None if there is no room. ``column``: what each can hold."""
    if demand.within == NODE_LEVEL:
        widest = len(topology.levels)
    elif demand.within:
        widest = max(widest, topology.level_index(demand.within) or 0)
    if max(column, default=0) >= wanted:
        n = min((n for n, room in enumerate(column) if room >= wanted), key=lambda n: (column[n], n))
        return [(n, wanted)]
    sums = list(accumulate(column, initial=0))
    for level in range(len(topology.levels) - 1, widest - 1, -1):
        rooms = [(sums[d.hi] - sums[d.lo], d.number) for d in topology.by_level[level]]
        fitting = [room for room in rooms if room[0] >= wanted]
        if fitting:
            _, number = min(fitting)
            counts: list[tuple[int, int]] = []
            _fill(topology, column, sums, topology.domains[number], wanted, counts)
            counts.sort()
            return counts
    return None


def _fill(
    topology: Topology,
    column: Sequence[int],
    sums: Sequence[int],
    domain: Domain,
    wanted: int,
    counts: list[tuple[int, int]],
) -> None:
    """Take ``wanted`` tasks from as few parts of a domain as possible: the largest first, for the rest the tightest."""
    children = topology.children[domain.number]
    if children:
        parts = [(sums[d.hi] - sums[d.lo], d.number) for d in children]
    else:
        parts = [(column[n], n) for n in range(domain.lo, domain.hi)]
    for room, part in few(parts, wanted):
        if children:
            _fill(topology, column, sums, topology.domains[part], room, counts)
        else:
            counts.append((part, room))


def few(parts: list[tuple[int, int]], wanted: int) -> list[tuple[int, int]]:
    """(how much, from which part), covering ``wanted`` with the fewest parts and leaving large ones whole."""
    parts = sorted((part for part in parts if part[0]), key=lambda part: (-part[0], part[1]))
    taken: list[tuple[int, int]] = []
    for at, (room, part) in enumerate(parts):
        if room >= wanted:
            tight = at
            while tight + 1 < len(parts) and parts[tight + 1][0] >= wanted:
                tight += 1
            size = parts[tight][0]
            first = next(number for held, number in parts[at : tight + 1] if held == size)
            return [*taken, (wanted, first)]
        taken.append((room, part))
        wanted -= room
    raise AssertionError("a domain was chosen that does not hold the gang")


def seats_on(capacity: Capacity, demand: Demand, counts: Sequence[tuple[int, int]], bounds: Bounds) -> tuple[Seat, ...]:
    """The seats for the given number of tasks on each node, in rank order, which is node order."""
    task, topology = demand.task, capacity.topology
    found: list[Seat] = []
    accepted = topology.accepted(task)
    for n, count in counts:
        name = topology.nodes[n].name
        if task.slice_mib:
            found += _slices(capacity, demand, n, count)
            continue
        if not task.gpus:
            found += [Seat(name)] * count
            continue
        usable = capacity.free[n] & accepted[topology.kind[n]] & bounds.usable(n)
        found += whole_gpus(topology, demand, n, count, usable)
    return tuple(found)


def whole_gpus(topology: Topology, demand: Demand, n: int, count: int, usable: int) -> list[Seat]:
    """Seats of whole GPUs for a number of tasks on one node, out of these GPUs."""
    name, each = topology.nodes[n].name, demand.task.gpus
    found: list[Seat] = []
    grouped = demand.chunk > 1 and topology.nvlink_level is None
    for _ in range(count // demand.chunk if grouped else count):
        if grouped:  # the tasks of one tensor-parallel group share an island
            room = [usable & island for island in topology.islands(n) if (usable & island).bit_count() >= demand.tp]
            group = _lowest(min(room, key=lambda mask: (mask.bit_count(), mask)), demand.tp)
            usable &= ~group
            while group:
                mask = _lowest(group, each)
                found.append(Seat(name, mask))
                group &= ~mask
        else:
            mask = pick_gpus(topology, demand, n, usable)
            found.append(Seat(name, mask))
            usable &= ~mask
    return found


def _slices(capacity: Capacity, demand: Demand, n: int, count: int) -> list[Seat]:
    """Slices on one node: GPUs that are shared already first, the fullest of them first."""
    task, topology = demand.task, capacity.topology
    left = {gpu: mib for mib, node, gpu in capacity.shared_slots(task) if node == n}
    usable = capacity.free[n] & topology.accepted(task)[topology.kind[n]]
    fresh = {i: gpu.vram_mib for i, gpu in enumerate(topology.nodes[n].gpus) if usable >> i & 1}
    found: list[Seat] = []
    for gpu, mib in (*sorted(left.items(), key=lambda item: (item[1], item[0])), *sorted(fresh.items())):
        while mib >= task.slice_mib and len(found) < count:
            found.append(Seat(topology.nodes[n].name, 1 << gpu, task.slice_mib))
            mib -= task.slice_mib
    return found


# ---- by score ------------------------------------------------------------------------------------------------------


def _by_score(
    capacity: Capacity, demand: Demand, size: int, avoid: Sequence[str], bounds: Bounds, scorer: Scorer
) -> Seating | None:
    """One task after another on the node that scores highest. The capacity is left as it was."""
    task, nodes = demand.task, capacity.topology.nodes
    mark = capacity.mark()
    found: list[Seat] = []
    for _ in range(size + demand.spares):
        if isinstance(scorer, Chooser) and not avoid and not bounds.barred:
            best = scorer.best(capacity, demand)  # equivalent to asking about every node
        else:
            best = _best_node(capacity, demand, avoid, bounds, scorer)
        if best is None:
            break
        found.append(Seat(nodes[best[0]].name, best[1], task.slice_mib))
        capacity.take(best[0], best[1], task.slice_mib, task.amounts)
    capacity.undo(mark)
    if len(found) < size + demand.spares:
        return None
    return Seating(tuple(found[:size]), tuple(found[size:]))


def _best_node(
    capacity: Capacity, demand: Demand, avoid: Sequence[str], bounds: Bounds, scorer: Scorer
) -> tuple[int, int] | None:
    """The node that scores highest, and the GPUs to take there; of equal ones the lowest number."""
    topology = capacity.topology
    accepted = topology.accepted(demand.task)
    best: tuple[int, int, int] | None = None
    for n, room in enumerate(bounded_slots(capacity, demand, avoid, bounds)):
        if room:
            score, gpus = scorer(capacity, demand, n, accepted[topology.kind[n]] & bounds.usable(n))
            if best is None or score > best[0]:
                best = (score, n, gpus)
    return None if best is None else best[1:]


# ---- how good it is ------------------------------------------------------------------------------------------------


def spread_of(topology: Topology, seats: Sequence[Seat]) -> Spread:
    """The distance between these seats."""
    if len(seats) == 1:
        return Spread(seats[0].node, (1,) * (len(topology.levels) + 1))
    nodes = sorted({topology.number[seat.node] for seat in seats})
    touched = [len({topology.above[n][level] for n in nodes}) for level in range(len(topology.levels))]
    if len(nodes) == 1:
        return Spread(topology.nodes[nodes[0]].name, (*touched, 1))
    inner = max(level for level, count in enumerate(touched) if count == 1)
    return Spread(topology.domain_of(nodes[0], inner).name, (*touched, len(nodes)))
