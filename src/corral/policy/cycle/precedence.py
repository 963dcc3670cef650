"""Who has the turn of the next gang in order: an overdue gang, one with a reservation, an owner before these, or it.

An owner is held back while a reserved start of its queue, by a borrower, comes before it. But no other gang goes before
an owner that could reclaim the seats: then the owner has its turn first. Knows the rules of going first, each from its
own module; does not know placement or quota.
"""

from __future__ import annotations

from corral.core.model import Gang
from corral.core.snapshot import Draft
from corral.policy.backfill.heads import Heads
from corral.policy.backfill.patience import Patience
from corral.policy.cycle.closures import Closures
from corral.policy.cycle.walk import Walk
from corral.policy.quota.limits import is_owner_before

#: A gang that has a turn, and whether it goes before its turn because it has waited too long.
Turn = tuple[Gang, bool]


class Precedence:
    """Turns in one draft."""

    def __init__(self, draft: Draft, patience: Patience, heads: Heads, closures: Closures, owners_first: bool) -> None:
        self._draft = draft
        self._patience, self._heads = patience, heads
        self._closures = closures
        self._owners_first = owners_first
        self._held_back: list[Gang] = []  # owners that have no turn before a reserved start of their queue
        self._aside: Turn | None = None  # has its turn after owners that were held back

    def turn_of(self, walk: Walk, gang: Gang) -> Turn | None:
        """Who has the turn of a gang that is next in order; None: ask for the next gang again."""
        if self._is_held_back(walk, gang):
            return None
        turn = self._chosen(walk, gang)
        if self._passes_owner(walk, turn[0]):  # it would be preempted for that owner: they have their turns first
            self._aside = turn
            self._closures.promote()
            return None
        return turn

    def forget(self) -> None:
        """All have another turn."""
        self._held_back.clear()

    def _chosen(self, walk: Walk, gang: Gang) -> Turn:
        if self._aside is not None:
            if is_owner_before(self._draft, gang, self._aside[0]):
                return gang, False
            aside, self._aside = self._aside, None
            if walk.is_open(aside[0]):
                return aside
        overdue = self._patience.before(walk, self._closures, gang)
        if overdue is not None:
            return overdue, True
        return self._heads.before(walk, gang) or gang, False

    def _is_held_back(self, walk: Walk, gang: Gang) -> bool:
        """Whether an owner has no turn yet, because a reserved start of its queue, by a borrower, comes before it."""
        is_behind = self._aside is None and self._owners_first and self._heads.holds_back(walk, gang)
        if not is_behind or not self._closures.demote(gang, self._draft.snapshot.expected_ms(gang)):
            return False
        self._held_back.append(gang)
        return True

    def _passes_owner(self, walk: Walk, chosen: Gang) -> bool:
        """Whether a gang comes before an owner that is held back, and would have to give back what it gets."""
        if self._aside is not None or not self._held_back:
            return False
        held = [each for each in self._held_back if walk.is_open(each)]
        passes = any(is_owner_before(self._draft, each, chosen) for each in held)
        self._held_back = [] if passes else held
        return passes
