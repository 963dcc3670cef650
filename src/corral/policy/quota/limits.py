"""Parts of a limit that are kept for waiting gangs: like the reservation of a start, but of quota and not of seats.

If the limit of its queue, the limit of its user, or what other queues lend makes a gang wait, the first such gang gets
its part from the time at which enough of the gangs that use the quota now are gone. The same applies within a
guarantee to the first gang of a queue, if the queue's own gangs leave too little of the guarantee for it. Gangs behind
it may use the same quota only if they are gone by then, or leave that part free. So small gangs cannot delay a large
one for ever, neither under a limit nor within a guarantee. Relies on the expected run times. Does not know nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter

from corral.core.cluster.resources import Amounts
from corral.core.model import Gang, Reservation
from corral.core.plan import PartKept
from corral.core.queues.quota import ROOT, QueueTree, Shortfall
from corral.core.queues.terms import contested
from corral.core.snapshot import Draft

#: (kind of bound, queue, user): gangs that share one of these may delay a gang that waits for it
Bound = tuple[str, str, str]
Started = tuple[Gang, Amounts]

LIMIT = "limit"
USER_LIMIT = "user_limit"
NOT_LENT = "not_lent"
GUARANTEE = "guarantee"


class Limits:
    """What one plan keeps within limits. Of each bound, a part is kept for the first gang that waits for it."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._first: dict[Bound, _Wait] = {}
        self._started: list[Started] = []  # gangs that this draft has started
        self._made: dict[Bound, PartKept] = {}
        self._looked_at: set[str] = set()  # queues

    def made(self) -> tuple[PartKept, ...]:
        """The parts that prevented a gang from starting."""
        return tuple(self._made.values())

    def keep_for(self, gang: Gang, short: Shortfall) -> None:
        """A gang waits because of this bound. Nothing is kept of a budget: shorter runs may use what is left of it."""
        bound = _bound_of(gang, short)
        if bound is not None:
            self._first.setdefault(bound, _Wait(self._draft, gang, self._draft.now_ms))

    def is_new(self, queue: str) -> bool:
        """Whether a queue has limits that may make its gangs wait, and this is the first call for it."""
        record = self._draft.queues.queues[queue]
        spec, used = record.spec, record.used
        if not (spec.limit or spec.user_limit) or queue in self._looked_at:
            return False
        self._looked_at.add(queue)
        backlog, least_charge_of = self._draft.state.backlog, self._draft.capacity.topology.least_charge
        buckets = [backlog.buckets[at] for priority in backlog.ages if (at := (priority, queue)) in backlog.buckets]
        return bool(spec.user_limit) or any(
            least_charge_of(demand, demand.smallest).get(name, 0) + used.get(name, 0) > limit
            for bucket in buckets
            for demand in bucket.by_demand
            for name, limit in spec.limit
        )

    def keep_from(self, gang: Gang, at_ms: int) -> None:
        """A gang waits until then for another reason than a bound. Keep its part of every bound for that time."""
        if self._draft.queues.is_bounded(gang.queue):
            wait = _Wait(self._draft, gang, at_ms)
            for bound in self._bounds_of(gang):
                self._first.setdefault(bound, wait)

    def allowed_from(
        self, gang: Gang, is_barred: bool, reservations: Collection[Reservation]
    ) -> Callable[[int], int | None] | None:
        """A function that returns the first time, not before a given time, at which the bounds of a gang leave room for
        it, beside what is in use and reserved now. Call it with increasing times. None: there is room at all times.

        Bounds that have room now have it later, unless a queue that uses less then lends less, or the room is reserved.
        """
        tree = self._draft.queues
        lends = tree.is_bounded(ROOT) and tree.is_bounded(gang.queue)
        if not is_barred and not lends and not (reservations and self._shared_with(gang)):
            return None
        return _Wait(self._draft, gang, self._draft.now_ms).allowed_from(self._started, reservations)

    def is_owner(self, gang: Gang) -> bool:
        """Whether a gang may start within the guarantee of its queue now."""
        return self._draft.queues.is_within(gang.queue, least_charge(self._draft, gang), self._draft.now_ms)

    def is_beyond(self, gang: Gang, charge: Mapping[str, int]) -> bool:
        """Whether a gang is within a guarantee with the least that it may be charged, and not with this charge."""
        tree = self._draft.queues
        if not tree.guaranteed:
            return False
        owned = tree.path(gang.queue)[entitled_from(self._draft, gang) :]
        return not all(tree.is_within(queue, charge, self._draft.now_ms) for queue in owned)

    def keep_within(self, gang: Gang) -> None:
        """Keep a part of its queue's guarantee for a gang that is first in the queue but not within the guarantee,
        because other gangs of the queue use it. Owners go before borrowers, so small gangs behind it would use it all.
        """
        bound = (GUARANTEE, gang.queue, "")
        tree = self._draft.queues
        now = self._draft.now_ms
        charge = least_charge(self._draft, gang)
        could_be = all((tree.guarantee(gang.queue, name, now) or 0) >= charge[name] for name in contested(charge))
        if could_be and bound not in self._first and not self.is_owner(gang):
            self._first[bound] = _Wait(self._draft, gang, now, gang.queue)

    def in_the_way_of(self, gang: Gang, charge: Mapping[str, int], released: Sequence[Started] = ()) -> PartKept | None:
        """The part kept for another gang that would be delayed if this gang were charged this much now, and if running
        gangs released this much (``released``)."""
        for bound, wait in self._shared_with(gang):
            at_ms = wait.delayed_ms(gang, tuple(charge.items()), self._started, released)
            if at_ms is not None and not self._goes_before(gang, bound, wait.gang):
                part = self._made[bound] = PartKept(wait.gang.id, *bound[1:], at_ms, bound[0] == GUARANTEE)
                return part
        return None

    def _goes_before(self, gang: Gang, bound: Bound, other: Gang) -> bool:
        """Whether a gang is an owner, and the other one is not: where their queues part, or, if the cluster has too
        little for both, against queues outside."""
        is_outside = bound[0] == NOT_LENT and yields_to(self._draft, other, gang)
        return is_outside or is_owner_before(self._draft, gang, other)

    def started(self, gang: Gang, charge: Amounts) -> None:
        """The draft has charged a gang with this."""
        for _, wait in self._shared_with(gang):
            wait.charge(gang, charge)
        self._started.append((gang, charge))

    def let_go(self, gang: Gang) -> bool:
        """Stop keeping parts for a gang that has its seats now. Whether one of them made another gang wait."""
        for bound in [bound for bound, wait in self._first.items() if wait.gang is gang]:
            del self._first[bound]
        kept = [bound for bound, part in self._made.items() if part.gang == gang.id]
        for bound in kept:
            del self._made[bound]
        return bool(kept)

    def _shared_with(self, gang: Gang) -> list[tuple[Bound, _Wait]]:
        """The waits for bounds that a gang shares, each once, without its own."""
        if not self._first:
            return []
        shared = [(bound, self._first[bound]) for bound in self._bounds_of(gang) if bound in self._first]
        found = {wait: bound for bound, wait in reversed(shared) if wait.gang is not gang}
        return [(bound, wait) for wait, bound in found.items()]

    def _bounds_of(self, gang: Gang) -> Iterator[Bound]:
        tree = self._draft.queues
        for queue in tree.path(gang.queue):
            if tree.queues[queue].spec.limit:
                yield LIMIT, queue, ""
        if tree.queues[gang.queue].spec.user_limit:
            yield USER_LIMIT, gang.queue, gang.user
        if tree.is_bounded(ROOT):
            yield NOT_LENT, ROOT, ""
        if self.is_owner(gang):
            yield GUARANTEE, gang.queue, ""


class _Wait:
    """A gang that waits for its part of a bound. The time at which it gets its part is computed when first needed."""

    def __init__(self, draft: Draft, gang: Gang, not_before_ms: int, owner: str | None = None) -> None:
        self.gang = gang
        self._draft = draft
        self._not_before_ms = not_before_ms
        self._owner = owner  # the queue within whose guarantee it is to start; None: it waits for its bounds
        self._at_ms: int | None = None  # when there will be enough; None: unknown
        self._then: QueueTree | None = None  # what queues will use then, if no other gang starts
        self._charge = least_charge(draft, gang)

    def delayed_ms(
        self, gang: Gang, charge: Amounts, started: Sequence[Started], released: Sequence[Started] = ()
    ) -> int | None:
        """When it is to get its part, if this gang would delay that; None if not."""
        if self._then is None:
            self._foresee(started)
        tree = self._then
        if tree is None or not self._is_there_then(gang):
            return None
        mark = tree.mark()
        tree.charge(gang.queue, gang.user, charge, 1)
        for other, amounts in released:
            if self._draft.snapshot.expected_end_ms(other) > (self._at_ms or 0):  # else it is gone by then anyway
                tree.charge(other.queue, other.user, amounts, -1)
        is_delayed = not self._is_allowed(tree)
        tree.undo(mark)
        return self._at_ms if is_delayed else None

    def allowed_from(
        self, started: Sequence[Started], reservations: Collection[Reservation]
    ) -> Callable[[int], int | None]:
        tree, gangs = self._draft.queues.copy(), self._draft.state.gangs
        ends = self._in_turn(tree, started)
        for each in reservations:  # a reservation counts until its end
            holder = gangs[each.gang]
            charge = tuple(least_charge(self._draft, holder).items())
            tree.charge(holder.queue, holder.user, charge, 1)
            ends.append((each.until_ms, holder.rank, holder, charge))
        leaving = deque(sorted(ends, key=itemgetter(0, 1)))

        def first_ms(time_ms: int) -> int | None:
            while leaving and (leaving[0][0] <= time_ms or not self._is_allowed(tree)):
                end_ms, _, gang, charged = leaving.popleft()
                tree.charge(gang.queue, gang.user, charged, -1)
                time_ms = max(time_ms, end_ms)
            return time_ms if self._is_allowed(tree) else None

        return first_ms

    def charge(self, gang: Gang, charge: Amounts) -> None:
        """Count a gang that has started since."""
        if self._then is not None and self._is_there_then(gang):
            self._then.charge(gang.queue, gang.user, charge, 1)

    def _is_there_then(self, gang: Gang) -> bool:
        """Whether a gang that starts now will still be running when this one gets its part."""
        return self._at_ms is not None and self._draft.now_ms + self._draft.snapshot.hold_ms(gang) > self._at_ms

    def _is_allowed(self, tree: QueueTree) -> bool:
        if self._owner is not None:
            return tree.is_within(self._owner, self._charge, self._draft.now_ms)
        return next(tree.shortfalls(self.gang.queue, self.gang.user, self._charge, 0, self._draft.now_ms), None) is None

    def _foresee(self, started: Sequence[Started]) -> None:
        """Remove the gangs that have seats in the order of their ends, until this one may have its part."""
        tree = self._then = self._draft.queues.copy()
        is_allowed = self._is_allowed(tree)
        at_ms = self._draft.now_ms
        for end_ms, _, gang, charged in self._in_turn(tree, started):
            if end_ms > max(at_ms, self._not_before_ms):
                if is_allowed:
                    break
                at_ms = end_ms
            tree.charge(gang.queue, gang.user, charged, -1)
            is_allowed = is_allowed or self._is_allowed(tree)
        self._at_ms = max(at_ms, self._not_before_ms) if is_allowed else None

    def _in_turn(self, tree: QueueTree, started: Sequence[Started]) -> list[tuple[int, int, Gang, Amounts]]:
        """(expected end, rank, gang, what it is charged) of all gangs that share a bound with the waiting gang; the
        earliest end first."""
        draft, snapshot = self._draft, self._draft.snapshot
        within = self._owner or (ROOT if tree.is_bounded(ROOT) else tree.path(self.gang.queue)[1])
        found = [
            (snapshot.expected_end_ms(gang), gang.rank, gang, gang.charged)
            for (queue, _), gangs in draft.state.held_by.items()
            if within in tree.path(queue)
            for name, gang in gangs.items()
            if gang.charged and name not in draft.leaving and name not in draft.served
        ]
        claimed = [(gang, gang.charged) for gang in draft.state.claimants.values() if gang.id not in draft.served]
        found += [
            (draft.now_ms + snapshot.hold_ms(gang), gang.rank, gang, charged)
            for gang, charged in (*claimed, *started)
            if within in tree.path(gang.queue)
        ]
        return sorted(found, key=lambda each: each[:2])


def _bound_of(gang: Gang, short: Shortfall) -> Bound | None:
    if short.kind == LIMIT:
        return LIMIT, short.queue, ""
    if short.kind == USER_LIMIT:
        return USER_LIMIT, gang.queue, gang.user
    return (NOT_LENT, ROOT, "") if short.kind == NOT_LENT else None


def least_charge(draft: Draft, gang: Gang) -> Mapping[str, int]:
    """The least that a queue would be charged for a gang."""
    return draft.capacity.topology.least_charge(gang.demand, gang.demand.smallest)


def is_owner_before(draft: Draft, gang: Gang, other: Gang) -> bool:
    """Whether a gang is within its guarantee where the paths of the two queues part, and the other is not."""
    tree, now = draft.queues, draft.now_ms
    if not tree.is_entitled(gang.queue, other.queue, least_charge(draft, gang), now):
        return False
    return not tree.is_entitled(other.queue, gang.queue, least_charge(draft, other), now)


def yields_to(draft: Draft, gang: Gang, other: Gang) -> bool:
    """Whether another gang goes before this one as an owner: it is within all guarantees of its path from a depth not
    below the one where the paths part, and this gang is so only from a greater depth, or not at all."""
    mine, theirs = entitled_from(draft, gang), entitled_from(draft, other)
    path, shared = draft.queues.path(other.queue), 0
    for queue, name in zip(path, draft.queues.path(gang.queue), strict=False):
        shared += queue == name
    if shared < len(path) and path[shared - 1] == gang.queue:
        return theirs <= shared  # gangs of a queue have no guarantee against the queues below it
    return theirs <= min(shared, len(path) - 1) and mine > theirs


def entitled_from(draft: Draft, gang: Gang) -> int:
    """The least depth from which a gang is within all guarantees of its path down to its queue."""
    tree, charge = draft.queues, least_charge(draft, gang)
    path = tree.path(gang.queue)
    depth = len(path)
    while depth > 1 and tree.is_within(path[depth - 1], charge, draft.now_ms):
        depth -= 1
    return depth
