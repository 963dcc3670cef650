"""The cheapest set of candidates whose seats, once free, hold a gang. Pure search; does not know rights or queues.

Small cases are solved exactly. Large ones greedily, node by node, then trimmed: candidates that are not needed stay. A
step is taken completely or not at all, and each domain starts from the beginning. If that finds nothing, ``reduction``
is used. The result does not depend on the order in which candidates are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand
from corral.core.cluster.slots import could_take
from corral.core.model import NEVER_MS
from corral.policy.placement.seating import Bounds
from corral.policy.preemption.ledger import Ledger, LossTally
from corral.policy.preemption.reduction import Reduction, Test
from corral.policy.preemption.transportation import Transportation
from corral.policy.preemption.vacancy import Candidate, Here, Vacancy, in_order

EXACT_MAX = 24  # more candidates than this are not searched exactly


def cheapest(
    capacity: Capacity,
    demand: Demand,
    size: int,
    avoid: Sequence[str],
    bounds: Bounds,
    candidates: Sequence[Candidate],
    ledger: Ledger,
    is_enough: Test,
) -> list[Candidate] | None:
    """The cheapest legal set that makes enough room, or None. Leaves the capacity as it was."""
    ordered = sorted(candidates, key=in_order)
    is_small = len(ordered) <= EXACT_MAX
    if is_small:
        ordered = [each for each in ordered if ledger.is_legal([each])]
        if not _could_take(capacity, demand, size, ordered):
            return None
    search = _Search(Vacancy(capacity, demand, size, avoid, bounds), ledger, is_enough)
    if is_small and not search.could_fit(ordered):
        return None
    best = search.greedy(ordered)
    if is_small or best is None:
        best = search.reduce(ordered, best)
    if best is None:
        best = search.transported(ordered)
    return None if best is None else search.without_idle(best)


def _could_take(capacity: Capacity, demand: Demand, size: int, candidates: Sequence[Candidate]) -> bool:
    """A quick upper bound, if all left: False means certainly no room."""
    mark = capacity.mark()
    for candidate in _whole(candidates):
        candidate.leave(capacity)
    found = could_take(capacity, demand, size)
    capacity.undo(mark)
    return found


def _whole(candidates: Sequence[Candidate]) -> Iterable[Candidate]:
    """Of gangs that could also shrink, the candidate that frees the most."""
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        known = found.get(candidate.gang.id)
        if known is None or len(known.frees) < len(candidate.frees):
            found[candidate.gang.id] = candidate
    return found.values()


class _Search:
    def __init__(self, vacancy: Vacancy, ledger: Ledger, is_enough: Test) -> None:
        self._vacancy = vacancy
        self._ledger = ledger
        self._is_enough = is_enough
        self._needs_quota = not is_enough(())  # then it may help to preempt a gang elsewhere

    def could_fit(self, candidates: Sequence[Candidate]) -> bool:
        """Whether there would be room if all left. If not, no set can make room."""
        vacancy, mark = self._vacancy, self._vacancy.mark()
        for candidate in _whole(candidates):
            vacancy.free(candidate)
        fits = vacancy.fits()
        vacancy.undo(mark)
        return fits

    # ---- from the other end ------------------------------------------------------------------------------------

    def reduce(self, candidates: Sequence[Candidate], best: list[Candidate] | None) -> list[Candidate] | None:
        """All candidates, minus those that are not needed; of few candidates, all sets."""
        is_exact = len(candidates) <= EXACT_MAX
        for at in range(len(self._vacancy.domains)):
            here = self._within(candidates, at)
            if here and self._may_be_enough(
                self._by_node(here, *self._vacancy.domains[at]), *self._vacancy.domains[at]
            ):
                reduction = Reduction(self._vacancy, at, here, self._ledger, self._is_enough)
                best = reduction.run(best, is_exact)
        return best

    def _within(self, candidates: Sequence[Candidate], at: int) -> Sequence[Candidate]:
        """Candidates that may affect whether there is room in a domain."""
        lo, hi = self._vacancy.domains[at]
        if not self._vacancy.demand.within or self._needs_quota:
            return candidates
        return [c for c in candidates if any(lo <= n < hi for n, _ in c.on)]

    # ---- where queues may lose just enough ---------------------------------------------------------------------

    def transported(self, candidates: Sequence[Candidate]) -> list[Candidate] | None:
        """A legal set, if there is one: see ``Transportation``. Only if not all of them may leave together."""
        if self._ledger.is_legal(_whole(candidates)):
            return None
        lawful = [each for each in candidates if self._ledger.is_legal((each,))]
        for at, (lo, hi) in enumerate(self._vacancy.domains):
            here = self._within(lawful, at)
            if here and self._may_be_enough(self._by_node(here, lo, hi), lo, hi):
                found = Transportation(self._vacancy, at, here, self._ledger).find()
                if found is not None:
                    mark = self._vacancy.mark()
                    found = self._with_quota(found, lawful)
                    for candidate in found:
                        self._vacancy.free(candidate)
                    trimmed = self._trim(found, at)
                    self._vacancy.undo(mark)
                    if trimmed is not None:
                        return trimmed
        return None

    def _with_quota(self, chosen: list[Candidate], candidates: Iterable[Candidate]) -> list[Candidate]:
        """These, and as many others as are needed for the quota, the cheapest first."""
        tally, gone = LossTally(self._ledger), {each.gang.id for each in chosen}
        tally.add(chosen)
        for candidate in candidates:
            if self._is_enough(chosen):
                break
            if candidate.gang.id not in gone and tally.add((candidate,)):
                gone.add(candidate.gang.id)
                chosen = [*chosen, candidate]
        return chosen

    # ---- greedy ------------------------------------------------------------------------------------------------

    def greedy(self, candidates: Sequence[Candidate]) -> list[Candidate] | None:
        """In each domain that may hold the gang, free the cheapest tasks one by one; the cheapest domain wins."""
        best: tuple[int, int, list[Candidate]] | None = None
        for at, (lo, _) in enumerate(self._vacancy.domains):
            chosen = self._greedy_within(self._within(candidates, at), at)
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
        tally = LossTally(self._ledger)
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
            asked = [candidate for candidate, _ in steps]
            if tally.add(asked):
                for candidate in asked:
                    chosen[candidate.gang.id] = candidate
                    vacancy.free(candidate)
            else:
                refused = self._refused(chosen.values(), asked)
                at_node[n] = [item for item in at_node[n] if item[0] is not refused]
            if at_node[n]:
                heappush(offers, (self._least(n, at_node[n]), 0, -NEVER_MS, n))
        found = self._trim(list(chosen.values()), at)
        vacancy.undo(mark)
        return found

    def _refused(self, chosen: Iterable[Candidate], asked: Sequence[Candidate]) -> Candidate:
        """The first of a step that may not be added: without it there may be another step."""
        tally = LossTally(self._ledger)
        tally.add(chosen)
        return next(candidate for candidate in asked if not tally.add((candidate,)))

    def _by_node(self, candidates: Sequence[Candidate], lo: int, hi: int) -> dict[int, list[Here]]:
        """What candidates would free on nodes that the gang accepts, in order of price."""
        found: dict[int, list[Here]] = {}
        vacancy = self._vacancy
        kind = vacancy.capacity.topology.kind
        accepted = vacancy.accepted
        any_node = not vacancy.demand.task.gpus
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
        each = vacancy.demand.task.gpus
        column = vacancy.column
        free = vacancy.capacity.free
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
        """A lower bound of what a further task on a node costs; its offer is computed only when this comes up.

        Each task lacks a minimum number of GPUs, and each GPU costs at least what the cheapest candidate costs per
        GPU.
        """
        missing = self._vacancy.demand.task.gpus - self._vacancy.capacity.free[n].bit_count()
        if missing <= 0:
            return 0
        return missing * min([candidate.price // (mask.bit_count() or 1) for candidate, mask in here])

    def _offer(self, n: int, steps: Sequence[Here]) -> tuple[int, int, int]:
        """(price for each further task, price, and of equals the latest) of the next step on a node."""
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
                if item[0].gang.demand.tasks_min:  # of one that could shrink or leave, only what gives up more
                    steps = [other for other in steps if other[0].gang is not item[0].gang or other[1] & ~item[1]]
                    if any(other[0].gang is item[0].gang for other in steps):
                        continue
                steps.append(item)
                mask |= item[1]
                if mask.bit_count() >= least and self._vacancy.gain(n, steps) > 0:
                    return self._needed(n, steps)
        return []

    def _needed(self, n: int, steps: list[Here]) -> list[Here]:
        """Without those that more expensive ones made unnecessary."""
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
        """Drop candidates that are not needed, the most expensive first, and check the rest."""
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
        return chosen if self._ledger.is_legal(chosen) else None

    def without_idle(self, chosen: list[Candidate]) -> list[Candidate]:
        """Without candidates that are not needed; some may cost nothing."""
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
