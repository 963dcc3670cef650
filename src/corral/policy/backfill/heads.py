"""Gangs that got a reservation from an earlier plan: each stays first of its pool until it has started.

Shares change with every start and end, and with them the order. If the next gang in order took what is kept for
another, large gangs would get reservations again and again and never start. So a reservation binds later plans: only
a higher priority, an owner within its guarantee, or an overdue gang goes before; the plan records which one did, by
which right. See docs/decisions/0024. Places no gang.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from corral.core.cluster.resources import Seat
from corral.core.model import NEVER_MS, Gang, Reservation, Right, StartMoved
from corral.core.plan import PartKept
from corral.core.snapshot import Draft
from corral.policy.cycle.walk import Walk
from corral.policy.quota.limits import entitled_from, is_owner_before, yields_to

MOVERS_MAX = 8  # gangs that are recorded as the reason why one start was moved


class Heads:
    """Gangs that go before the turn of others in one draft. ``reserved``: their names, in the order of reservation."""

    def __init__(self, draft: Draft, reserved: Iterable[str]) -> None:
        self._draft, self._all = draft, tuple(reserved)
        self._pending = [draft.state.gangs[name] for name in self._all]  # these had no turn yet
        self._before: dict[str, dict[str, Right]] = {}  # gang -> gangs that had their turn before it, by which right
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

    def unbound(self, gang: Gang, reservations: Collection[Reservation]) -> list[str]:
        """Gangs whose reservations do not bind this one: borrowers, where it is within its guarantee."""
        if not reservations or not self._draft.queues.guaranteed:
            return []
        gangs = [self._draft.state.gangs[each.gang] for each in reservations]
        return [holder.id for holder in gangs if is_owner_before(self._draft, gang, holder)]

    # ---- who went before, and by which right -------------------------------------------------------------------

    def rights_of(self, gang: Gang, is_overdue: bool) -> dict[str, Right]:
        """The gangs with a reservation that had no turn yet, and by which right this one has its turn before them.
        Call it before the turn of every gang."""
        if not self._pending:
            return {}
        self._pending = [each for each in self._pending if each is not gang]
        found = {each.id: self._right_over(gang, each, is_overdue) for each in self._pending}
        return {name: right for name, right in found.items() if right is not None}

    def passed(self, gang: Gang, rights: dict[str, Right]) -> None:
        """A gang has taken seats, or got a reservation, by these rights."""
        for name, right in rights.items():
            before = self._before.setdefault(name, {})
            if len(before) < MOVERS_MAX:
                before[gang.id] = right

    def kept_from(self, gang: Gang, part: PartKept) -> None:
        """This gang waits because a part of a limit is kept for another one."""
        if self.is_one(gang):
            self._before.setdefault(gang.id, {})[part.gang] = Right.LIMIT

    def overrun(
        self, gang: Gang, seats: Sequence[Seat], unbound: Container[str], made: Iterable[Reservation]
    ) -> list[str]:
        """Gangs with a reservation that an owner has taken seats from. ``unbound``: gangs whose reservations do not
        bind it; ``made``: the reservations of this plan so far."""
        taken: dict[str, int] = {}
        for seat in seats:
            taken[seat.node] = taken.get(seat.node, 0) | seat.gpus
        until_ms = self._draft.now_ms + self._draft.snapshot.hold_ms(gang)
        found = [
            each.gang
            for each in made
            if each.gang in unbound and each.gang in self._all and each.at_ms < until_ms
            if any(seat.gpus & taken.get(seat.node, 0) for seat in each.seats)
        ]
        self.passed(gang, dict.fromkeys(found, Right.GUARANTEE))
        return found

    def moved(self, made: Iterable[Reservation]) -> tuple[StartMoved, ...]:
        """Of the starts that were reserved before, those that are later now or not reserved any more, each with the
        gangs that had their turn before. ``made``: the reservations of this plan."""
        known, starts = self._draft.state.reservations, {each.gang: each.at_ms for each in made}
        return tuple(
            StartMoved(name, by, right)
            for name in self._all
            if name not in self._draft.served and starts.get(name, NEVER_MS) > known[name].at_ms
            for by, right in self._before.get(name, {}).items()
        )

    def _right_over(self, gang: Gang, head: Gang, is_overdue: bool) -> Right | None:
        if gang.priority > head.priority:
            return Right.PRIORITY
        if is_owner_before(self._draft, gang, head) or yields_to(self._draft, head, gang):
            return Right.GUARANTEE
        if is_overdue:
            return Right.PATIENCE
        is_first = gang.id in self._all and self._all.index(gang.id) < self._all.index(head.id)
        is_older = _is_like(gang, head) and gang.rank < head.rank
        return Right.RESERVATION if gang.priority == head.priority and (is_first or is_older) else None

    # ---- which goes first --------------------------------------------------------------------------------------

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
