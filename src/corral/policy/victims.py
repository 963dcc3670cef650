"""The cheapest set of candidates whose seats, once free, hold a gang. Pure search; knows nothing of rights or queues.

Small cases are solved exactly. Large ones greedily, node by node, then trimmed: whoever turns out not to be needed
stays. The result does not depend on the order in which candidates are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Amounts, Demand, Seat, amount_of
from corral.core.cluster.slots import gpu_slots, node_slots, raw_slots, room_by_domain, trimmed
from corral.core.model import NEVER_MS, Cause, Gang
from corral.core.state import State, seated

#: How many sets the exact search may look at before it settles for the best found so far.
EXPANSIONS_MAX = 2_000
EXACT_MAX = 24  # more candidates than this are not searched exactly

#: Whether these together are enough, as far as quota goes.
Test = Callable[[Sequence["Candidate"]], bool]
#: Takes candidates one after another and says of each whether it may be added to those before.
Ledger = Callable[["Candidate"], bool]


class Candidate(Struct, frozen=True):
    """A gang that could leave, or shrink to ``keep``; ``frees`` are the seats that would become free."""

    gang: Gang
    cause: Cause
    price: int
    frees: tuple[Seat, ...]
    keep: tuple[Seat, ...]
    on: tuple[tuple[int, int], ...]  # where it frees something: a node, and the GPUs there
    may_go_below: bool = False  # its queue may fall below its guarantee by this
    is_reclaimed: bool = False  # by its owner: the last of a queue to be asked may take it below its guarantee

    @property
    def key(self) -> tuple[int, int]:
        """Cheaper first; of equals the one that came last."""
        return (self.price, -self.gang.rank)

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
        """What its queue is no longer charged for."""
        return state.charge_for(self.gang.demand.task, self.frees) if self.keep else self.gang.charged


#: A candidate, and the GPUs it would free on one node.
Here = tuple[Candidate, int]


def by_node(capacity: Capacity, seats: Sequence[Seat]) -> tuple[tuple[int, int], ...]:
    """The numbers of the nodes these seats are on, each once, with the GPUs of the seats there."""
    found: dict[int, int] = {}
    for n, seat in seated(capacity.topology, seats):
        found[n] = found.get(n, 0) | seat.gpus
    return tuple(sorted(found.items()))


def cheapest(
    capacity: Capacity,
    demand: Demand,
    size: int,
    avoid: Sequence[str],
    candidates: Sequence[Candidate],
    new_ledger: Callable[[], Ledger],
    is_enough: Test,
) -> list[Candidate] | None:
    """The cheapest legal set that makes enough room, or None. Leaves the capacity as it was."""
    ordered = sorted(candidates, key=lambda candidate: candidate.key)
    search = _Search(capacity, demand, size, avoid, new_ledger, is_enough)
    best = search.greedy(ordered)
    if len(ordered) <= EXACT_MAX:
        best = search.exact(ordered, best)
    return None if best is None else search.without_idle(best)


class _Search:
    def __init__(
        self,
        capacity: Capacity,
        demand: Demand,
        size: int,
        avoid: Sequence[str],
        new_ledger: Callable[[], Ledger],
        is_enough: Test,
    ) -> None:
        self._capacity, self._demand, self._avoid = capacity, demand, avoid
        self._wanted = size + demand.spares
        self._new_ledger, self._is_enough = new_ledger, is_enough
        self._accepted = capacity.topology.accepted(demand.task)
        self._column = self._without_avoided(raw_slots(capacity, demand))
        self._total = sum(self._column)

    def _is_legal(self, chosen: Sequence[Candidate]) -> bool:
        may_add = self._new_ledger()
        return all(may_add(candidate) for candidate in chosen)

    # ---- exact -------------------------------------------------------------------------------------------------

    def exact(self, candidates: Sequence[Candidate], best: list[Candidate] | None) -> list[Candidate] | None:
        """Depth first over all sets, cheapest members first, cut where the price is already too high."""
        self._best, self._best_price = best, sum(c.price for c in best) if best is not None else None
        self._left = EXPANSIONS_MAX
        self._descend(candidates, 0, [], 0)
        return self._best

    def _descend(self, candidates: Sequence[Candidate], at: int, chosen: list[Candidate], price: int) -> None:
        if self._best_price is not None and price >= self._best_price:
            return
        self._left -= 1
        if self._fits() and self._is_legal(chosen) and self._is_enough(chosen):
            self._best, self._best_price = list(chosen), price
            return
        for i in range(at, len(candidates)):
            if self._left <= 0 or (self._best_price is not None and price + candidates[i].price >= self._best_price):
                break  # the others are dearer still
            if any(c.gang.id == candidates[i].gang.id for c in chosen):
                continue
            undo = self._free(candidates[i])
            self._descend(candidates, i + 1, [*chosen, candidates[i]], price + candidates[i].price)
            self._unfree(undo)

    # ---- greedy ------------------------------------------------------------------------------------------------

    def greedy(self, candidates: Sequence[Candidate]) -> list[Candidate] | None:
        """In each domain that may hold the gang, free the cheapest tasks one by one; the cheapest domain wins."""
        best: tuple[int, int, list[Candidate]] | None = None
        for lo, hi in self._domains():
            here = (
                candidates if not self._demand.within else [c for c in candidates if any(lo <= n < hi for n, _ in c.on)]
            )
            chosen = self._greedy_within(here, lo, hi)
            if chosen is not None:
                result = (sum(c.price for c in chosen), lo, chosen)
                best = result if best is None or result[:2] < best[:2] else best
        return None if best is None else best[2]

    def _domains(self) -> list[tuple[int, int]]:
        topology = self._capacity.topology
        if not self._demand.within:
            return [(0, len(topology.nodes))]
        return [(d.lo, d.hi) for _, d in room_by_domain(topology, self._column, self._demand.within)]

    def _greedy_within(self, candidates: Sequence[Candidate], lo: int, hi: int) -> list[Candidate] | None:
        at_node = self._by_node(candidates, lo, hi)
        if not self._may_be_enough(at_node, lo, hi):
            return None
        mark, before = self._capacity.mark(), self._column.copy()
        chosen: dict[str, Candidate] = {}
        may_add = self._new_ledger()
        offers = [(self._least(n, here), 0, -NEVER_MS, n) for n, here in at_node.items()]
        heapify(offers)
        while offers and not (self._room(lo, hi) >= self._wanted and self._is_enough(list(chosen.values()))):
            *before_now, n = heappop(offers)
            steps = self._next_on(n, at_node[n], chosen)
            if not steps:
                continue
            now = self._offer(n, steps)
            if now > tuple(before_now):
                heappush(offers, (*now, n))
                continue
            for candidate, _ in steps:
                if may_add(candidate):
                    chosen[candidate.gang.id] = candidate
                    self._free(candidate)
                else:
                    at_node[n] = [item for item in at_node[n] if item[0] is not candidate]
            if at_node[n]:
                heappush(offers, (self._least(n, at_node[n]), 0, -NEVER_MS, n))
        found = self._trim(list(chosen.values()), lo, hi)
        self._capacity.undo(mark)
        self._column[:] = before
        self._total = sum(before)
        return found

    def _by_node(self, candidates: Sequence[Candidate], lo: int, hi: int) -> dict[int, list[Here]]:
        """Who would free what on which node that the gang accepts, in order of price."""
        found: dict[int, list[Here]] = {}
        kind, accepted, any_node = self._capacity.topology.kind, self._accepted, not self._demand.task.gpus
        for candidate in candidates:
            for n, mask in candidate.on:
                if n in found:
                    found[n].append((candidate, mask))
                elif lo <= n < hi and (any_node or accepted[kind[n]]):
                    found[n] = [(candidate, mask)]
        return found

    def _may_be_enough(self, at_node: Mapping[int, Sequence[Here]], lo: int, hi: int) -> bool:
        """A quick no: if all of them left, there would not even be GPUs enough."""
        each = self._demand.task.gpus
        if not each:
            return True
        room, free, column = sum(self._column[lo:hi]), self._capacity.free, self._column
        kind, accepted = self._capacity.topology.kind, self._accepted
        for n, here in at_node.items():
            if room >= self._wanted:
                return True
            mask = free[n]
            for _, gpus in here:
                mask |= gpus
            room += max(0, (mask & accepted[kind[n]]).bit_count() // each - column[n])
        return room >= self._wanted

    def _least(self, n: int, here: Sequence[Here]) -> int:
        """A lower bound of what a further task on a node costs; its offer is worked out only when this comes up.

        Each task lacks at least so many GPUs, and each GPU costs at least what the cheapest of the candidates asks
        for one.
        """
        missing = self._demand.task.gpus - self._capacity.free[n].bit_count()
        if missing <= 0:
            return 0
        return missing * min(candidate.price // max(1, mask.bit_count()) for candidate, mask in here)

    def _offer(self, n: int, steps: Sequence[Here]) -> tuple[int, int, int]:
        """(price for each further task, price, and of equals the last to come) of the next step on a node."""
        price = sum(candidate.price for candidate, _ in steps)
        return (
            price // max(1, self._gain(n, steps)),
            price,
            -max(candidate.gang.rank for candidate, _ in steps),
        )

    def _next_on(self, n: int, here: Sequence[Here], chosen: dict[str, Candidate]) -> list[Here]:
        """The cheapest few on a node, in order of price, that together make room for one more task there."""
        steps: list[Here] = []
        for item in here:
            if item[0].gang.id not in chosen:
                steps.append(item)
                if self._may_gain(n, steps) and self._gain(n, steps) > 0:
                    return self._needed(n, steps)
        return []

    def _needed(self, n: int, steps: list[Here]) -> list[Here]:
        """Without those that the dearer ones made unnecessary."""
        for item in steps[:-1]:
            fewer = [other for other in steps if other is not item]
            if self._may_gain(n, fewer) and self._gain(n, fewer) > 0:
                steps = fewer
        return steps

    def _may_gain(self, n: int, steps: Sequence[Here]) -> bool:
        """A quick no: with these gone there are not even GPUs enough for another task."""
        mask = self._capacity.free[n]
        for _, gpus in steps:
            mask |= gpus
        return mask.bit_count() >= self._demand.task.gpus * (self._column[n] + 1)

    def _gain(self, n: int, steps: Sequence[Here]) -> int:
        """How many more tasks fit on a node once these have left it."""
        capacity, task = self._capacity, self._demand.task
        if any(candidate.gang.demand.task.slice_mib for candidate, _ in steps):
            return self._gain_by_leaving(n, steps)
        if not capacity.open[n] or capacity.topology.nodes[n].name in self._avoid:
            return 0
        mask = 0
        for _, gpus in steps:
            mask |= gpus
        usable = capacity.free[n] | mask & capacity.up[n] & ~capacity.claimed[n]
        usable &= self._accepted[capacity.topology.kind[n]]
        count = gpu_slots(capacity.topology, self._demand, n, usable) if task.gpus else self._wanted
        for name, each in task.amounts:
            left = capacity.amount_left(n, name)
            if left is None:
                return 0
            if each and left < count * each:
                left += self._freed(n, steps, name)
                count = min(count, left // each)
        return count - self._column[n]

    def _freed(self, n: int, steps: Sequence[Here], name: str) -> int:
        node = self._capacity.topology.nodes[n].name
        return sum(
            (amount_of(candidate.gang.amounts, name) or 0) * sum(seat.node == node for seat in candidate.frees)
            for candidate, _ in steps
        )

    def _gain_by_leaving(self, n: int, steps: Sequence[Here]) -> int:
        """The same by trying it: a shared GPU is free only when all who share it have left."""
        mark = self._capacity.mark()
        for candidate, _ in steps:
            candidate.leave(self._capacity)
        gain = self._slots_on(n) - self._column[n]
        self._capacity.undo(mark)
        return gain

    def _trim(self, chosen: list[Candidate], lo: int, hi: int) -> list[Candidate] | None:
        """Drop whoever is not needed, dearest first, and make sure that what is left is enough and legal."""
        if self._room(lo, hi) < self._wanted or not self._is_enough(chosen):
            return None
        for candidate in sorted(chosen, key=lambda c: c.key, reverse=True):
            if self._room(lo, hi) - self._least_loss(candidate) < self._wanted:
                continue
            fewer = [c for c in chosen if c is not candidate]
            self._keep(candidate)
            if self._room(lo, hi) >= self._wanted and self._is_enough(fewer):
                chosen = fewer
            else:
                self._free(candidate)
        return chosen if self._is_legal(chosen) else None

    def _least_loss(self, candidate: Candidate) -> int:
        """At least so many tasks fit less if a candidate stays: by its GPUs alone, and only where that is sure."""
        demand, capacity = self._demand, self._capacity
        if not demand.task.gpus or demand.within or demand.spread or demand.chunk > 1:
            return 0
        if candidate.gang.demand.task.slice_mib:
            return 0
        loss = 0
        for n, gpus in candidate.on:
            usable = capacity.free[n] & ~gpus & self._accepted[capacity.topology.kind[n]]
            loss += max(0, self._column[n] - gpu_slots(capacity.topology, demand, n, usable))
        return loss

    def without_idle(self, chosen: list[Candidate]) -> list[Candidate]:
        """Without anyone who need not leave; there may be some who cost nothing."""
        if all(candidate.price for candidate in chosen):
            return chosen
        mark, before = self._capacity.mark(), self._column.copy()
        for candidate in chosen:
            self._free(candidate)
        for candidate in sorted(chosen, key=lambda c: c.key, reverse=True):
            if candidate.price:
                continue
            fewer = [c for c in chosen if c is not candidate]
            self._keep(candidate)
            if self._fits() and self._is_enough(fewer):
                chosen = fewer
            else:
                self._free(candidate)
        self._capacity.undo(mark)
        self._column[:] = before
        self._total = sum(before)
        return chosen

    # ---- columns -----------------------------------------------------------------------------------------------

    def _free(self, candidate: Candidate) -> tuple[int, list[tuple[int, int]]]:
        """Let a candidate leave; what to hand to _unfree to take it back."""
        undo = (self._capacity.mark(), [(n, self._column[n]) for n, _ in candidate.on])
        candidate.leave(self._capacity)
        for n, _ in undo[1]:
            self._set(n, self._slots_on(n))
        return undo

    def _keep(self, candidate: Candidate) -> None:
        """Let a candidate stay after all."""
        candidate.stay(self._capacity)
        for n, _ in candidate.on:
            self._set(n, self._slots_on(n))

    def _unfree(self, undo: tuple[int, list[tuple[int, int]]]) -> None:
        self._capacity.undo(undo[0])
        for n, count in undo[1]:
            self._set(n, count)

    def _set(self, n: int, count: int) -> None:
        self._total += count - self._column[n]
        self._column[n] = count

    def _slots_on(self, n: int) -> int:
        if self._capacity.topology.nodes[n].name in self._avoid:
            return 0
        return node_slots(self._capacity, self._demand, n, self._capacity.free[n])

    def _without_avoided(self, column: list[int]) -> list[int]:
        for name in self._avoid:
            n = self._capacity.topology.number.get(name)
            if n is not None:
                column[n] = 0
        return column

    def _room(self, lo: int, hi: int) -> int:
        if self._demand.spread or self._demand.chunk > 1:
            return sum(trimmed(self._capacity.topology, self._column.copy(), self._demand)[lo:hi])
        return self._total if hi - lo == len(self._column) else sum(self._column[lo:hi])

    def _fits(self) -> bool:
        return any(self._room(lo, hi) >= self._wanted for lo, hi in self._domains())
