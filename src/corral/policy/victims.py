"""The cheapest set of candidates whose seats, once free, hold a gang. Pure search; knows nothing of rights or queues.

Small cases are solved exactly. Large ones greedily, node by node, then trimmed: whoever turns out not to be needed
stays. The result does not depend on the order in which candidates are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand
from corral.core.model import NEVER_MS
from corral.policy.placement import Bounds
from corral.policy.vacancy import Candidate, Here, Vacancy, in_order

#: How many sets the exact search may look at before it settles for the best found so far.
EXPANSIONS_MAX = 2_000
EXACT_MAX = 24  # more candidates than this are not searched exactly

#: Whether these together are enough, as far as quota goes.
Test = Callable[[Sequence[Candidate]], bool]
#: Takes candidates one after another and says of each whether it may be added to those before.
Ledger = Callable[[Candidate], bool]


def cheapest(
    capacity: Capacity,
    demand: Demand,
    size: int,
    avoid: Sequence[str],
    bounds: Bounds,
    candidates: Sequence[Candidate],
    new_ledger: Callable[[], Ledger],
    is_enough: Test,
) -> list[Candidate] | None:
    """The cheapest legal set that makes enough room, or None. Leaves the capacity as it was."""
    ordered = sorted(candidates, key=in_order)
    search = _Search(Vacancy(capacity, demand, size, avoid, bounds), new_ledger, is_enough)
    is_small = len(ordered) <= EXACT_MAX
    if is_small and not search.could_fit(ordered):
        return None
    best = search.greedy(ordered)
    if is_small:
        best = search.exact(ordered, best)
    return None if best is None else search.without_idle(best)


class _Search:
    def __init__(self, vacancy: Vacancy, new_ledger: Callable[[], Ledger], is_enough: Test) -> None:
        self._vacancy, self._new_ledger, self._is_enough = vacancy, new_ledger, is_enough

    def _is_legal(self, chosen: Sequence[Candidate]) -> bool:
        may_add = self._new_ledger()
        return all(may_add(candidate) for candidate in chosen)

    def could_fit(self, candidates: Sequence[Candidate]) -> bool:
        """Whether there would be room if everyone left. If not, it is in vain to try one set after another."""
        vacancy, mark = self._vacancy, self._vacancy.mark()
        whole: dict[str, Candidate] = {}  # of those who could also shrink, as much as they could give up
        for candidate in candidates:
            known = whole.get(candidate.gang.id)
            if known is None or len(known.frees) < len(candidate.frees):
                whole[candidate.gang.id] = candidate
        for candidate in whole.values():
            vacancy.free(candidate)
        fits = vacancy.fits()
        vacancy.undo(mark)
        return fits

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
        if self._vacancy.fits() and self._is_legal(chosen) and self._is_enough(chosen):
            self._best, self._best_price = list(chosen), price
            return
        for i in range(at, len(candidates)):
            if self._left <= 0 or (self._best_price is not None and price + candidates[i].price >= self._best_price):
                break  # the others are dearer still
            if any(c.gang.id == candidates[i].gang.id for c in chosen):
                continue
            undo = self._vacancy.free(candidates[i])
            self._descend(candidates, i + 1, [*chosen, candidates[i]], price + candidates[i].price)
            self._vacancy.unfree(undo)

    # ---- greedy ------------------------------------------------------------------------------------------------

    def greedy(self, candidates: Sequence[Candidate]) -> list[Candidate] | None:
        """In each domain that may hold the gang, free the cheapest tasks one by one; the cheapest domain wins."""
        best: tuple[int, int, list[Candidate]] | None = None
        for at, (lo, hi) in enumerate(self._vacancy.domains):
            here = candidates
            if self._vacancy.demand.within:
                here = [c for c in candidates if any(lo <= n < hi for n, _ in c.on)]
            chosen = self._greedy_within(here, at)
            if chosen is not None:
                result = (sum(c.price for c in chosen), lo, chosen)
                best = result if best is None or result[:2] < best[:2] else best
        return None if best is None else best[2]

    def _greedy_within(self, candidates: Sequence[Candidate], at: int) -> list[Candidate] | None:
        vacancy = self._vacancy
        at_node = self._by_node(candidates, *vacancy.domains[at])
        if not self._may_be_enough(at_node, *vacancy.domains[at]):
            return None
        mark = vacancy.mark()
        chosen: dict[str, Candidate] = {}
        may_add = self._new_ledger()
        offers = [(self._least(n, here), 0, -NEVER_MS, n) for n, here in at_node.items()]
        heapify(offers)
        while offers and not (vacancy.room(at) >= vacancy.wanted and self._is_enough(list(chosen.values()))):
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
                    vacancy.free(candidate)
                else:
                    at_node[n] = [item for item in at_node[n] if item[0] is not candidate]
            if at_node[n]:
                heappush(offers, (self._least(n, at_node[n]), 0, -NEVER_MS, n))
        found = self._trim(list(chosen.values()), at)
        vacancy.undo(mark)
        return found

    def _by_node(self, candidates: Sequence[Candidate], lo: int, hi: int) -> dict[int, list[Here]]:
        """Who would free what on which node that the gang accepts, in order of price."""
        found: dict[int, list[Here]] = {}
        vacancy = self._vacancy
        kind, accepted, any_node = vacancy.capacity.topology.kind, vacancy.accepted, not vacancy.demand.task.gpus
        for candidate in candidates:
            for n, mask in candidate.on:
                if n in found:
                    found[n].append((candidate, mask))
                elif lo <= n < hi and (any_node or accepted[kind[n]]):
                    found[n] = [(candidate, mask)]
        return found

    def _may_be_enough(self, at_node: Mapping[int, Sequence[Here]], lo: int, hi: int) -> bool:
        """A quick no: if all of them left, there would not even be GPUs enough."""
        vacancy = self._vacancy
        each, column, free = vacancy.demand.task.gpus, vacancy.column, vacancy.capacity.free
        if not each:
            return True
        room, kind = sum(column[lo:hi]), vacancy.capacity.topology.kind
        for n, here in at_node.items():
            if room >= vacancy.wanted:
                return True
            mask = free[n]
            for _, gpus in here:
                mask |= gpus
            mask &= vacancy.accepted[kind[n]] & vacancy.bounds.usable(n)
            room += max(0, mask.bit_count() // each - column[n])
        return room >= vacancy.wanted

    def _least(self, n: int, here: Sequence[Here]) -> int:
        """A lower bound of what a further task on a node costs; its offer is worked out only when this comes up.

        Each task lacks at least so many GPUs, and each GPU costs at least what the cheapest of the candidates asks
        for one.
        """
        missing = self._vacancy.demand.task.gpus - self._vacancy.capacity.free[n].bit_count()
        if missing <= 0:
            return 0
        return missing * min([candidate.price // (mask.bit_count() or 1) for candidate, mask in here])

    def _offer(self, n: int, steps: Sequence[Here]) -> tuple[int, int, int]:
        """(price for each further task, price, and of equals the last to come) of the next step on a node."""
        price = sum(candidate.price for candidate, _ in steps)
        return (
            price // max(1, self._vacancy.gain(n, steps)),
            price,
            -max(candidate.gang.rank for candidate, _ in steps),
        )

    def _next_on(self, n: int, here: Sequence[Here], chosen: dict[str, Candidate]) -> list[Here]:
        """The cheapest few on a node, in order of price, that together make room for one more task there."""
        steps: list[Here] = []
        mask, least = self._vacancy.capacity.free[n], self._least_gpus(n)
        for item in here:
            if item[0].gang.id not in chosen:
                steps.append(item)
                mask |= item[1]
                if mask.bit_count() >= least and self._vacancy.gain(n, steps) > 0:
                    return self._needed(n, steps)
        return []

    def _needed(self, n: int, steps: list[Here]) -> list[Here]:
        """Without those that the dearer ones made unnecessary."""
        free, least = self._vacancy.capacity.free[n], self._least_gpus(n)
        for item in steps[:-1]:
            fewer = [other for other in steps if other is not item]
            mask = free
            for _, gpus in fewer:
                mask |= gpus
            if mask.bit_count() >= least and self._vacancy.gain(n, fewer) > 0:
                steps = fewer
        return steps

    def _least_gpus(self, n: int) -> int:
        """With fewer GPUs free than this, there is no room for another task on a node, whatever else is free."""
        return self._vacancy.demand.task.gpus * (self._vacancy.column[n] + 1)

    def _trim(self, chosen: list[Candidate], at: int) -> list[Candidate] | None:
        """Drop whoever is not needed, dearest first, and make sure that what is left is enough and legal."""
        vacancy = self._vacancy
        if vacancy.room(at) < vacancy.wanted or not self._is_enough(chosen):
            return None
        for candidate in sorted(chosen, key=in_order, reverse=True):
            if vacancy.room(at) - vacancy.least_loss(candidate) < vacancy.wanted:
                continue
            fewer = [c for c in chosen if c is not candidate]
            vacancy.keep(candidate)
            if vacancy.room(at) >= vacancy.wanted and self._is_enough(fewer):
                chosen = fewer
            else:
                vacancy.free(candidate)
        return chosen if self._is_legal(chosen) else None

    def without_idle(self, chosen: list[Candidate]) -> list[Candidate]:
        """Without anyone who need not leave; there may be some who cost nothing."""
        if all(candidate.price for candidate in chosen):
            return chosen
        vacancy, mark = self._vacancy, self._vacancy.mark()
        for candidate in chosen:
            vacancy.free(candidate)
        for candidate in sorted(chosen, key=in_order, reverse=True):
            if candidate.price:
                continue
            fewer = [c for c in chosen if c is not candidate]
            vacancy.keep(candidate)
            if vacancy.fits() and self._is_enough(fewer):
                chosen = fewer
            else:
                vacancy.free(candidate)
        vacancy.undo(mark)
        return chosen
