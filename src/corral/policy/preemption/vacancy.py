"""Candidates for preemption, and how many tasks of a gang would fit without them: a column, updated as candidates leave
or stay.

Knows seats and columns. Does not know rights, queues or which candidates are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Amounts, Demand, Seat, amount_of
from corral.core.cluster.slots import gpu_slots, node_slots, raw_slots, room_by_domain, trimmed
from corral.core.model import Cause, Gang
from corral.core.state import State, seated
from corral.policy.placement.seating import FREE, Bounds


class Candidate(Struct, frozen=True):
    """A gang that could be preempted, or shrink to ``keep``; ``frees`` are the seats that would become free."""

    gang: Gang
    cause: Cause
    price: int
    frees: tuple[Seat, ...]
    keep: tuple[Seat, ...]
    on: tuple[tuple[int, int], ...]  # where it frees something: a node, and the GPUs there
    may_go_below: bool = False  # its queue may fall below its guarantee by this
    is_reclaimed: bool = False  # by reclaim: the last victim of a queue may take it below its guarantee

    @property
    def gpu_milli(self) -> int:
        return self.gang.gpu_milli * len(self.frees) // len(self.gang.all_seats) if self.keep else self.gang.gpu_milli

    def leave(self, capacity: Capacity) -> None:
        for n, seat in seated(capacity.topology, self.frees):
            capacity.give_back(n, seat.gpus, seat.slice_mib, self.gang.amounts)

    def stay(self, capacity: Capacity) -> None:
        for n, seat in seated(capacity.topology, self.frees):
            capacity.take(n, seat.gpus, seat.slice_mib, self.gang.amounts)

    def uncharged(self, state: State) -> Amounts:
        """What its queue is no longer charged for: of a gang that shrinks, also its spares."""
        if not self.keep:
            return self.gang.charged
        kept = dict(state.charge_for(self.gang.demand.task, self.keep))
        return tuple([(name, amount - kept.get(name, 0)) for name, amount in self.gang.charged])


def in_order(candidate: Candidate) -> tuple[int, int]:
    """A key: cheaper first; of equals the latest."""
    return (candidate.price, -candidate.gang.rank)


#: A candidate, and the GPUs it would free on one node.
Here = tuple[Candidate, int]


def by_node(capacity: Capacity, seats: Sequence[Seat]) -> tuple[tuple[int, int], ...]:
    """The numbers of the nodes these seats are on, each once, with the GPUs of the seats there."""
    if len(seats) == 1:
        n = capacity.topology.number.get(seats[0].node)
        return () if n is None else ((n, seats[0].gpus),)
    found: dict[int, int] = {}
    for n, seat in seated(capacity.topology, seats):
        found[n] = found.get(n, 0) | seat.gpus
    return tuple(sorted(found.items()))


class Vacancy:
    """How many tasks fit on each node, and whether that is enough in some domain. Updates the capacity too."""

    def __init__(
        self, capacity: Capacity, demand: Demand, size: int, avoid: Sequence[str], bounds: Bounds = FREE
    ) -> None:
        self.capacity = capacity
        self.demand = demand
        self.wanted = size + demand.spares
        self.bounds = bounds
        topology = capacity.topology
        self.accepted = topology.accepted(demand.task)  # by kind of node
        self._avoided = frozenset(topology.number[name] for name in avoid if name in topology.number)
        self.column = raw_slots(capacity, demand)
        for n in self._avoided:
            self.column[n] = 0
        for n in bounds.barred:
            if self.column[n]:
                self.column[n] = self._slots_on(n)
        #: (from, until) of the domains of which one has to hold the gang
        self.domains = [(0, len(self.column))]
        if demand.within:
            self.domains = [(d.lo, d.hi) for _, d in room_by_domain(topology, self.column, demand.within)]
        self._is_trimmed = bool(demand.spread) or demand.chunk > 1
        self._domain = [0] * len(self.column)  # by node
        for at, (lo, hi) in enumerate(self.domains):
            self._domain[lo:hi] = [at] * (hi - lo)
        self._count()

    def _count(self) -> None:
        self._rooms = [sum(self.column[lo:hi]) for lo, hi in self.domains] or [0]

    @property
    def counts_groups(self) -> bool:
        """Whether it matters which GPUs of a node are free, and not only how many."""
        return self._is_trimmed or self.demand.tp > 1

    def useful(self, n: int, gpus: int) -> int:
        """How many of these GPUs of a node the gang accepts."""
        return (gpus & self.accepted[self.capacity.topology.kind[n]] & self.bounds.usable(n)).bit_count()

    def room(self, at: int) -> int:
        """How many tasks the domain at this position of the list holds."""
        if not self._is_trimmed:
            return self._rooms[at]
        lo, hi = self.domains[at]
        return sum(trimmed(self.capacity.topology, self.column.copy(), self.demand)[lo:hi])

    def fits(self) -> bool:
        if not self._is_trimmed:
            return max(self._rooms) >= self.wanted
        return any(self.room(at) >= self.wanted for at in range(len(self.domains)))

    # ---- leaving -----------------------------------------------------------------------------------------------

    def free(self, candidate: Candidate) -> tuple[int, list[tuple[int, int]]]:
        """Remove a candidate; returns what ``unfree`` needs to restore it."""
        undo = (self.capacity.mark(), [(n, self.column[n]) for n, _ in candidate.on])
        candidate.leave(self.capacity)
        for n, _ in undo[1]:
            self._set(n, self._slots_on(n))
        return undo

    def unfree(self, undo: tuple[int, list[tuple[int, int]]]) -> None:
        self.capacity.undo(undo[0])
        for n, count in undo[1]:
            self._set(n, count)

    def keep(self, candidate: Candidate) -> None:
        """Restore a candidate."""
        candidate.stay(self.capacity)
        for n, _ in candidate.on:
            self._set(n, self._slots_on(n))

    def mark(self) -> tuple[int, list[int]]:
        return self.capacity.mark(), self.column.copy()

    def undo(self, mark: tuple[int, list[int]]) -> None:
        self.capacity.undo(mark[0])
        self.column[:] = mark[1]
        self._count()

    def _set(self, n: int, count: int) -> None:
        self._rooms[self._domain[n]] += count - self.column[n]
        self.column[n] = count

    def _slots_on(self, n: int) -> int:
        if n in self._avoided:
            return 0
        count = node_slots(self.capacity, self.demand, n, self.capacity.free[n] & self.bounds.usable(n))
        return min(count, self.bounds.most(self.capacity, self.demand, n)) if n in self.bounds.barred else count

    # ---- estimates ---------------------------------------------------------------------------------------------

    def gain(self, n: int, steps: Sequence[Here]) -> int:
        """How many more tasks fit on a node once these have left it."""
        capacity, task = self.capacity, self.demand.task
        if any(candidate.gang.demand.task.slice_mib for candidate, _ in steps):
            return self._gain_by_leaving(n, steps)
        if not capacity.open[n] or n in self._avoided:
            return 0
        mask = 0
        for _, gpus in steps:
            mask |= gpus
        usable = capacity.free[n] | mask & capacity.up[n] & ~capacity.claimed[n]
        usable &= self.accepted[capacity.topology.kind[n]] & self.bounds.usable(n)
        kept = self.bounds.amounts.get(n, {}) if n in self.bounds.barred else {}
        count = gpu_slots(capacity.topology, self.demand, n, usable) if task.gpus else self.wanted
        for name, each in task.amounts:
            left = capacity.amount_left(n, name)
            if left is None:
                return 0
            left -= kept.get(name, 0)
            if each and left < count * each:
                left += self._freed(n, steps, name)
                count = min(count, max(0, left) // each)
        return count - self.column[n]

    def _freed(self, n: int, steps: Sequence[Here], name: str) -> int:
        node = self.capacity.topology.nodes[n].name
        return sum(
            (amount_of(candidate.gang.amounts, name) or 0) * sum(seat.node == node for seat in candidate.frees)
            for candidate, _ in steps
        )

    def _gain_by_leaving(self, n: int, steps: Sequence[Here]) -> int:
        """The same by trying it: a shared GPU is free only when all its gangs have left."""
        mark = self.capacity.mark()
        for candidate, _ in steps:
            candidate.leave(self.capacity)
        gain = self._slots_on(n) - self.column[n]
        self.capacity.undo(mark)
        return gain

    def least_loss(self, candidate: Candidate) -> int:
        """A lower bound of the tasks that do not fit if a candidate stays: by its GPUs alone, and only if certain."""
        demand, capacity = self.demand, self.capacity
        if not demand.task.gpus or demand.within or self._is_trimmed or candidate.gang.demand.task.slice_mib:
            return 0
        loss = 0
        for n, gpus in candidate.on:
            usable = capacity.free[n] & ~gpus & self.accepted[capacity.topology.kind[n]] & self.bounds.usable(n)
            loss += max(0, self.column[n] - gpu_slots(capacity.topology, demand, n, usable))
        return loss
