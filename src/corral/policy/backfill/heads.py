"""Gangs that got a reservation from an earlier plan: each stays first of its pool until it has started.

Shares change with every start and end, and with them the order. If the next gang in order took what is kept for
another, large gangs would get reservations again and again and never start. So a reservation binds later plans: only
a higher priority, or an owner within its guarantee, goes before. See docs/decisions/0024. Places no gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.core.model import Gang
from corral.core.snapshot import Draft
from corral.policy.cycle.walk import Walk
from corral.policy.quota.limits import entitled_from, is_owner_before


class Heads:
    """Gangs that go before the turn of others in one draft. ``reserved``: their names, in the order of reservation."""

    def __init__(self, draft: Draft, reserved: Iterable[str]) -> None:
        self._draft, self._all = draft, frozenset(reserved)
        self._reserved = sorted([draft.state.gangs[name] for name in reserved], key=lambda gang: -gang.priority)

    def is_one(self, gang: Gang) -> bool:
        """Whether it has a reservation from an earlier plan."""
        return gang.id in self._all

    def before(self, walk: Walk, gang: Gang) -> Gang | None:
        """The gang that goes before this one, if there is one. Each is offered once."""
        rivals = self._rivals(gang) if self._reserved else []
        while rivals:
            first = next((each for each in rivals if not self._yields(each, rivals)), rivals[0])
            first = min([each for each in rivals if _is_like(each, first)], key=lambda each: each.rank)
            if first is gang or not self._goes_before(first, gang):
                return None
            rivals.remove(first)
            self._reserved.remove(first)
            if walk.is_open(first):
                return first
        return None

    def holds_back(self, walk: Walk, gang: Gang) -> bool:
        """Whether a gang has its turn as an owner, and one below the same queue that goes before it is no owner there:
        that one would have the turn in its place, before the owners of other queues."""
        if not self._reserved:
            return False
        owned = entitled_from(self._draft, gang)
        path = self._draft.queues.path(gang.queue)
        if owned == len(path):
            return False
        for each in self._rivals(gang):
            if each is not gang and path[owned] in self._draft.queues.path(each.queue):
                if entitled_from(self._draft, each) > owned and self._goes_before(each, gang) and walk.is_open(each):
                    return True
        return False

    def _rivals(self, gang: Gang) -> list[Gang]:
        """Gangs that have a reservation and are no less important, also on other nodes: they may share a limit."""
        served = self._draft.served
        return [each for each in self._reserved if each.priority >= gang.priority and each.id not in served]

    def _yields(self, gang: Gang, rivals: Sequence[Gang]) -> bool:
        return any(is_owner_before(self._draft, other, gang) for other in rivals if other is not gang)

    def _goes_before(self, gang: Gang, other: Gang) -> bool:
        if _is_like(gang, other):
            return gang.rank < other.rank
        return not is_owner_before(self._draft, other, gang)


def _is_like(gang: Gang, other: Gang) -> bool:
    """Whether only their age decides which goes first: that does not change."""
    return (gang.queue, gang.user, gang.priority) == (other.queue, other.user, other.priority)
