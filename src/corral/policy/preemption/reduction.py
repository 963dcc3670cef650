"""Victims from the other end: start with all candidates, then keep those that are not needed.

More victims can only make more room, and fewer victims can only make a set legal. So if all together do not make
enough room, no set does; and if they do, sets are found by keeping one after another, first those whose queues would
lose too much. Slower than adding one step after another, and finds more. Knows rights and queues only through a
ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from corral.policy.preemption.ledger import Ledger, LossTally
from corral.policy.preemption.vacancy import Candidate, Vacancy, in_order

#: Whether these together are enough, as far as quota goes.
Test = Callable[[Sequence[Candidate]], bool]

Kind = tuple[object, ...]

#: How many sets are tried before the search returns the best found so far.
EXPANSIONS_MAX = 2_000
ROUNDS_MAX = 8  # how often an order is changed to keep gangs whose queues lost too much


class Reduction:
    """Within one domain, from a set of candidates; a gang has one candidate, or two of which one frees less."""

    def __init__(
        self, vacancy: Vacancy, at: int, candidates: Iterable[Candidate], ledger: Ledger, enough: Test
    ) -> None:
        self._vacancy = vacancy
        self._at = at
        self._ledger = ledger
        self._is_enough = enough
        self._whole: dict[str, Candidate] = {}  # the most that a gang could give up
        self._less: dict[str, Candidate] = {}  # and the least
        for candidate in sorted(candidates, key=lambda each: -len(each.frees)):
            kept = self._whole if candidate.gang.id not in self._whole else self._less
            kept[candidate.gang.id] = candidate
        self._best: list[Candidate] | None = None
        self._kinds: dict[str, Kind] = {}
        self._left = EXPANSIONS_MAX

    def run(self, best: list[Candidate] | None = None, is_exact: bool = False) -> list[Candidate] | None:
        """A legal set that is enough, cheaper than the best so far if there is one; else that. The vacancy is left as
        it was."""
        vacancy, self._best = self._vacancy, best
        mark = vacancy.mark()
        everyone = list(self._whole.values())
        for candidate in everyone:
            vacancy.free(candidate)
        if self._fits() and self._is_enough(everyone):
            if best is None:
                self._best = self._reduced(everyone)
            if is_exact:
                order = self._in_order(everyone, self._overdrawn(everyone))
                self._descend(order, 0, everyone, [], frozenset())
        vacancy.undo(mark)
        return self._best

    def _fits(self) -> bool:
        return self._vacancy.room(self._at) >= self._vacancy.wanted

    def _price(self, chosen: Iterable[Candidate]) -> int:
        return sum(candidate.price for candidate in chosen)

    # ---- one after another, never back -------------------------------------------------------------------------

    def _reduced(self, everyone: list[Candidate]) -> list[Candidate] | None:
        """All have left. Keep those that are not needed, the most expensive first and, before them, those of queues
        that lose too much; if that is not enough, repeat with the queues that lost too much then."""
        spared = self._overdrawn(everyone)
        for _ in range(ROUNDS_MAX):
            mark = self._vacancy.mark()
            chosen = {each.gang.id: each for each in everyone}
            self._spare(self._in_order(everyone, spared), chosen)
            self._shrink(chosen)
            self._vacancy.undo(mark)
            found = list(chosen.values())
            if self._ledger.is_legal(found):
                return found
            overdrawn = self._overdrawn(found)
            if overdrawn <= spared:
                return None
            spared |= overdrawn
        return None

    def _spare(self, block: Sequence[Candidate], chosen: dict[str, Candidate]) -> None:
        """Keep all of a block, or, if that is too many, all of each half of it."""
        mark = self._vacancy.mark()
        for candidate in block:
            self._vacancy.keep(candidate)
            del chosen[candidate.gang.id]
        if self._fits() and self._is_enough(list(chosen.values())):
            return
        self._vacancy.undo(mark)
        for candidate in block:
            chosen[candidate.gang.id] = candidate
        if len(block) > 1:
            half = len(block) // 2
            self._spare(block[:half], chosen)
            self._spare(block[half:], chosen)

    def _shrink(self, chosen: dict[str, Candidate]) -> None:
        """Gangs that could shrink, if that is enough, shrink."""
        for name, whole in list(chosen.items()):
            less = self._less.get(name)
            if less is not None:
                mark = self._vacancy.mark()
                self._vacancy.keep(whole)
                self._vacancy.free(less)
                chosen[name] = less
                if not (self._fits() and self._is_enough(list(chosen.values()))):
                    self._vacancy.undo(mark)
                    chosen[name] = whole

    # ---- all of them -------------------------------------------------------------------------------------------

    def _descend(
        self, order: Sequence[Candidate], i: int, leave: list[Candidate], asked: list[Candidate], must: frozenset[Kind]
    ) -> None:
        """Those chosen must leave; those of the order from ``i`` on have left, and are tried in turn: with and without
        each. Of candidates of one kind the more expensive stay first, so if one must leave, all that follow must
        (``must``)."""
        self._left -= 1
        if self._left <= 0 or not self._ledger.is_legal(asked):
            return
        if self._best is not None and self._price(asked) >= self._price(self._best):
            return
        if i == len(order):
            self._best = list(asked)
            return
        candidate, vacancy = order[i], self._vacancy
        kind = self._kind(candidate)
        if kind not in must:
            others = [each for each in leave if each is not candidate]
            mark = vacancy.mark()
            vacancy.keep(candidate)
            if self._fits() and self._is_enough(others):
                self._descend(order, i + 1, others, asked, must)
            less = self._less.get(candidate.gang.id)
            if less is not None:
                vacancy.free(less)
                if self._fits() and self._is_enough([*others, less]):
                    self._descend(order, i + 1, [*others, less], [*asked, less], must)
            vacancy.undo(mark)
        self._descend(order, i + 1, leave, [*asked, candidate], must | {kind})

    def _kind(self, candidate: Candidate) -> Kind:
        """Candidates of one kind differ in price and age alone."""
        kind = self._kinds.get(candidate.gang.id)
        if kind is None:
            gang = candidate.gang
            is_plain = gang.id not in self._less and not gang.demand.task.slice_mib and not self._vacancy.counts_groups
            on = tuple([(n, self._vacancy.useful(n, gpus)) for n, gpus in candidate.on])
            alike = (gang.queue, candidate.cause, candidate.is_reclaimed, candidate.gpu_milli, gang.amounts, on)
            kind = self._kinds[gang.id] = alike if is_plain else (gang.id,)
        return kind

    # ---- order -------------------------------------------------------------------------------------------------

    def _overdrawn(self, candidates: Sequence[Candidate]) -> set[str]:
        """The gangs of queues that would lose too much, if all of these left."""
        tally = LossTally(self._ledger)
        refused = {c.gang.queue for c in sorted(candidates, key=in_order) if not tally.add((c,))}
        return {c.gang.id for c in candidates if c.gang.queue in refused}

    def _in_order(self, candidates: Sequence[Candidate], first: set[str]) -> list[Candidate]:
        """In which order they are kept: the most expensive first."""
        by_price = sorted(candidates, key=in_order, reverse=True)
        return sorted(by_price, key=lambda each: each.gang.id not in first)
