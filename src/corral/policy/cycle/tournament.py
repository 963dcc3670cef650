"""Which queue is next: a tournament along the tree of queues, level by level.

At each queue every child offers one gang; the children are compared, and the winner is what the queue itself offers one
level up. So two queues are compared where their paths part, however deep they lie. A child offers its first owner: a
gang within every guarantee from the child down. Without an owner it offers its first gang. So at every level gangs that
could reclaim go first. If no other queue comes between, a more important gang goes before the owner of its own queue,
which it could preempt. What a queue has waiting itself, beside its children, competes as one more child. Knows
rights, priorities and shares by what the order needs; does not know users, backlog entries or placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace

from corral.core.cluster.resources import Demand
from corral.core.queues.backlog import BacklogEntry, Bucket
from corral.core.queues.quota import ROOT
from corral.core.queues.terms import contested
from corral.core.snapshot import Draft
from corral.policy.backfill.pools import Pool, Pools
from corral.policy.cycle.fairness import Shares
from corral.policy.cycle.order import Key, Order

Best = tuple[Key, BacklogEntry, int]  # the first of a bucket: key, entry, position in the entry

Offer = tuple[Bucket, Best]

#: Which gangs take part: owners, within every guarantee of their path from this depth down; or all of them.
Rights = int
EVERYBODY: Rights = 1 << 30

#: How much is known of what a queue offers: nothing, its share, or the gang.
_BOUND, _SHARE, _EXACT = range(3)


class Guarantees:
    """What queues may still use within their own guarantees, in a draft."""

    def __init__(self, draft: Draft) -> None:
        self.tree = draft.queues
        self._topology = draft.state.topology
        self._now_ms = draft.now_ms
        self._dimensions = self.tree.guaranteed
        self._left: dict[str, dict[str, int]] = {}  # queue -> dimension -> how much
        self._may_owe: dict[str, bool] = {}
        self._charges: dict[Demand, tuple[tuple[str, int], ...]] = {}

    def charged(self, queue: str) -> bool:
        """What a queue uses has changed. Whether one of its path is guaranteed anything."""
        is_guaranteed = False
        for name in self.tree.path(queue):
            is_guaranteed = bool(self._left.pop(name, None)) or is_guaranteed
            self._may_owe.pop(name, None)
        return is_guaranteed

    def may_owe(self, queue: str) -> bool:
        """Whether a small enough gang could be within the guarantee of a queue."""
        known = self._may_owe.get(queue)
        if known is None:
            known = self._may_owe[queue] = any(left > 0 for left in self._left_of(queue).values())
        return known

    def is_within(self, queue: str, depth: int, demand: Demand) -> bool:
        """As ``QueueTree.is_within``, with the least that a gang would be charged, for all queues of a path from this
        depth down."""
        charge = self._charges.get(demand)
        if charge is None:
            whole = self._topology.least_charge(demand, demand.smallest)
            charge = self._charges[demand] = tuple([(name, whole[name]) for name in contested(whole)])
        for name in self.tree.path(queue)[depth:]:
            left = self._left.get(name)
            if left is None:
                left = self._left_of(name)
            for dimension, amount in charge:
                if amount > left.get(dimension, -1):
                    return False
        return bool(charge)

    def _left_of(self, queue: str) -> dict[str, int]:
        known = self._left.get(queue)
        if known is None:
            known = {}
            for dimension in self._dimensions:
                guarantee = self.tree.guarantee(queue, dimension, self._now_ms)
                if guarantee is not None:
                    known[dimension] = guarantee - self.tree.queues[queue].used.get(dimension, 0)
            self._left[queue] = known
        return known


class _Entrant:
    """A queue, or the gangs that wait in a queue itself, in the tournament of the children of the queue above it."""

    __slots__ = (
        "best",
        "buckets",
        "children",
        "depth",
        "first",
        "heap",
        "is_entitled",
        "is_over",
        "is_own",
        "is_seated",
        "key",
        "known",
        "name",
        "parent",
        "passed",
        "priority",
        "queue",
        "stamp",
        "unseated",
        "waiting",
    )

    def __init__(self, queue: str, depth: int, parent: _Entrant | None, waiting: list[Bucket]) -> None:
        self.queue = queue
        self.depth = depth
        self.parent = parent
        self.is_own = parent is not None and parent.queue == queue
        self.name = queue + "/" if self.is_own else queue  # goes before the names of the children
        self.waiting = waiting  # all buckets here and below
        self.is_seated = False  # whether they were split by children
        self.priority = max([bucket.priority for bucket in waiting], default=0)
        self.buckets: list[Bucket] = []  # its own, highest priority last, if it has no children
        self.children: dict[str, _Entrant] = {}
        #: of the children, each under a key that is no greater than its own; entries with an old stamp are void
        self.heap: list[tuple[Key, str, int]] = []
        self.key: Key = ()
        self.stamp = 0
        self.known = _BOUND
        self.best: Offer | None = None  # the first owner from here down, else the first of all
        self.first: Offer | None = None  # the first of all, if it was needed
        self.is_entitled = False  # the one that is offered, from here down
        self.is_over = False  # no gang here has another turn
        self.passed: list[_Entrant] = []  # the children of which no gang has another turn
        #: priority and pool -> how many of these were examined, and what was found (``Tournament._unseated``)
        self.unseated: dict[tuple[int, Pool], tuple[int, list[tuple[int, int]]]] = {}


class Tournament:
    """Keys are lower bounds until an entrant comes up; then it is examined, a step at a time. Call ``touch``
    when what an entrant offers may change. ``queue``: among the gangs below this one; ``rights``: which take part."""

    def __init__(
        self,
        guarantees: Guarantees,
        order: Order,
        shares: Shares,
        buckets: Iterable[Bucket],
        best_at: Callable[[Bucket, Rights], Best | None],
        lacks_seats: Callable[[Bucket, Pool], bool],
        pools: Pools,
        queue: str = ROOT,
        rights: Rights = EVERYBODY,
    ) -> None:
        self._guarantees = guarantees
        self._tree = guarantees.tree
        self._order = order
        self._shares = shares
        self._best_at, self._rights = best_at, rights
        self._lacks_seats, self._pools = lacks_seats, pools
        self._root = _Entrant(queue, len(self._tree.path(queue)) - 1, None, list(buckets))
        self._entrants: dict[str, _Entrant] = {}  # by queue
        self._owns: dict[str, _Entrant] = {}  # by queue, gangs that wait in it beside its children
        self._offered: dict[Demand, dict[_Entrant, None]] = {}  # entrants that offer a gang with this demand
        self._owners: dict[str, Tournament] = {}  # by queue, among the owners below it
        self._seat(self._root)

    def first(self) -> Offer | None:
        """The first of all."""
        chosen = self._choice(self._root)
        return None if chosen is None else chosen[0]

    def touch(self, queue: str, is_charged: bool = False) -> None:
        """The waiting gangs of a queue have changed. ``is_charged``: it was charged, and so were all above it: their
        shares and what is left of their guarantees have changed."""
        path = self._tree.path(queue)
        for name in path if is_charged else path[-1:]:
            own = self._owns.get(name)
            if own is not None:
                self._forget(own)
        for name in reversed(path):
            entrant = self._entrants.get(name)
            if entrant is not None:
                self._forget(entrant)
            if name in self._owners:
                self._owners[name].touch(queue, is_charged)

    def close(self, demands: Iterable[Demand]) -> None:
        """Some gangs with these demands have no other turn."""
        for demand in demands:
            for tournament in (self, *self._owners.values()):
                for entrant in list(tournament._offered.get(demand, ())):
                    self.touch(entrant.queue)

    # ---- who takes part ----------------------------------------------------------------------------------------

    def _seat(self, entrant: _Entrant) -> None:
        """Split the gangs below a queue by its children."""
        entrant.is_seated, own = True, list[Bucket]()
        below: dict[str, list[Bucket]] = {}
        path_of, depth = self._tree.path, entrant.depth + 1
        for bucket in entrant.waiting:
            path = path_of(bucket.queue)
            if len(path) == depth:
                own.append(bucket)
            elif path[depth] in below:
                below[path[depth]].append(bucket)
            else:
                below[path[depth]] = [bucket]
        if own and not below:
            entrant.buckets = sorted(own, key=lambda bucket: bucket.priority)
            return
        for name, buckets in below.items():
            self._entrants[name] = self._enter(_Entrant(name, depth, entrant, buckets), entrant)
        if own:
            self._owns[entrant.queue] = self._enter(_Entrant(entrant.queue, entrant.depth, entrant, own), entrant)
        heapify(entrant.heap)

    def _enter(self, child: _Entrant, parent: _Entrant) -> _Entrant:
        child.key = self._bound(child)
        parent.children[child.name] = child
        parent.heap.append((child.key, child.name, child.stamp))
        return child

    # ---- who wins ----------------------------------------------------------------------------------------------

    def _choice(self, parent: _Entrant) -> tuple[Offer, bool] | None:
        """Which gang the children of a queue send, and whether it is an owner from the child down. The owner of a
        child goes before a more important gang there only where it is needed: if others would come between."""
        winner = self._winner(parent)
        if winner is None or winner.best is None:
            return None
        owner, is_owner = winner.best, winner.is_entitled
        if not is_owner or winner.is_own or winner.priority <= owner[0].priority or self._rights != EVERYBODY:
            return owner, is_owner
        if winner.buckets and winner.first is None:
            winner.first = self._offer(winner, self._first_at(winner.buckets, EVERYBODY))
        first = winner.first
        if first is None or first[0].priority <= owner[0].priority:
            return owner, is_owner
        item = heappop(parent.heap)
        second = self._winner(parent)
        heappush(parent.heap, item)
        if second is not None and second.key < (True, *self._key(winner, first)):
            return owner, is_owner
        return first, False

    def _winner(self, parent: _Entrant) -> _Entrant | None:
        """The first of the children, examined as far as necessary."""
        heap, children = parent.heap, parent.children
        while heap:
            _, name, stamp = heap[0]
            child = children[name]
            if child.stamp != stamp or child.is_over:
                heappop(heap)
                continue
            if child.known == _EXACT:
                return child
            if self._look_closer(child):
                heapreplace(heap, (child.key, name, stamp))
            else:
                child.is_over = True
                parent.passed.append(child)
        return None

    def _look_closer(self, entrant: _Entrant) -> bool:
        """One step: its share, then its offer. False: it has none."""
        order = self._order
        if entrant.known == _BOUND and not order.looks_inside:
            entrant.known = _SHARE
            bound = order.queue(entrant.priority, self._share(entrant), entrant.name, ())
            entrant.key = (not self._may_be_owed(entrant), *bound) if order.owners_first else bound
            return True
        if not entrant.is_seated:
            self._seat(entrant)
        found = self._of_buckets(entrant) if entrant.buckets else self._of_children(entrant)
        if found is None:
            return False
        entrant.best, entrant.known = found, _EXACT
        key = self._key(entrant, found)
        if order.owners_first:
            is_entitled = entrant.is_entitled and not entrant.is_own
            key = (not is_entitled, *key)
        entrant.key = key
        if entrant.buckets:
            self._offer(entrant, found)
        return True

    def _offer(self, entrant: _Entrant, found: Offer | None) -> Offer | None:
        if found is not None:
            self._offered.setdefault(found[1][1].profile.demand, {})[entrant] = None
        return found

    def _of_buckets(self, entrant: _Entrant) -> Offer | None:
        """The first owner, else the first gang. Gangs that wait beside children have no such right against them."""
        found, is_all = None, self._rights == EVERYBODY
        rights = min(self._rights, entrant.depth)
        if self._order.owners_first and self._guarantees.may_owe(entrant.queue) and not (entrant.is_own and is_all):
            found = self._first_at(entrant.buckets, rights)
        entrant.is_entitled = found is not None
        if found is None and is_all:
            found = self._first_at(entrant.buckets, EVERYBODY)
            entrant.is_entitled = entrant.is_own  # whether it is within the guarantee is for the queue itself to say
        return found

    def _first_at(self, buckets: list[Bucket], rights: Rights) -> Offer | None:
        order, least = self._order, ()
        found: Offer | None = None
        for bucket in reversed(buckets):
            best = self._best_at(bucket, rights)
            if best is None:
                continue
            key = order.bucket(bucket, best[0])
            if found is None or key < least:
                found, least = (bucket, best), key
            if not order.looks_inside:
                break  # the others are less important
        return found

    def _of_children(self, entrant: _Entrant) -> Offer | None:
        """The first owner from here down, else the first gang."""
        chosen = self._choice(entrant)
        if chosen is None:
            return None
        entrant.first, is_owner = chosen
        if not self._order.owners_first:
            return entrant.first
        bucket, (_, entry, _) = entrant.first
        is_owner = is_owner and self._guarantees.is_within(entrant.queue, entrant.depth, entry.profile.demand)
        if is_owner and bucket.queue == entrant.queue:  # it waits in the queue itself, and may have been demoted
            best = self._best_at(bucket, entrant.depth)
            is_owner = best is not None and best[1] is entry
        entrant.is_entitled = is_owner
        if entrant.is_entitled or not self._guarantees.may_owe(entrant.queue):
            return entrant.first  # it is the first of the owners, too, if it is one of them
        owner = self._first_owner(entrant)
        entrant.is_entitled = owner is not None
        return owner or entrant.first

    def _first_owner(self, entrant: _Entrant) -> Offer | None:
        """The first gang below a queue that is within every guarantee from it down."""
        owners = self._owners.get(entrant.queue)
        if owners is None:
            known = self._guarantees, self._order, self._shares
            more = self._best_at, self._lacks_seats, self._pools
            owners = Tournament(*known, entrant.waiting, *more, entrant.queue, entrant.depth)
            self._owners[entrant.queue] = owners
        return owners.first()

    def _forget(self, entrant: _Entrant) -> None:
        """Examine its offer again when it comes up."""
        for each in (entrant.best, entrant.first) if entrant.buckets else ():
            if each is not None:
                self._offered[each[1][1].profile.demand].pop(entrant, None)
        entrant.first = None
        key = self._bound(entrant)
        if entrant.is_over or (entrant.known == _BOUND and key == entrant.key):
            return
        entrant.key = key
        entrant.known = _BOUND
        entrant.best = None
        entrant.stamp += 1
        if entrant.parent is not None:
            heappush(entrant.parent.heap, (key, entrant.name, entrant.stamp))

    # ---- keys --------------------------------------------------------------------------------------------------

    def _bound(self, entrant: _Entrant) -> Key:
        """A lower bound of its key, without examining shares or waiting gangs."""
        order = self._order
        least = order.at_least(entrant.priority)
        return (not self._may_be_owed(entrant), *least) if order.owners_first else least

    def _key(self, entrant: _Entrant, offer: Offer) -> Key:
        """The key with this gang, without rights."""
        order, (bucket, (first, _, _)) = self._order, offer
        share = 0 if order.looks_inside else self._share_with(entrant, offer)
        return order.queue(bucket.priority, share, entrant.name, first if order.looks_inside else ())

    def _share_with(self, entrant: _Entrant, offer: Offer) -> int:
        """Its share if it offers this gang: as if the children that were before the one the gang comes from, and found
        no seats, had used as much as that one. Else a child with small gangs would use up what its siblings with
        large gangs are behind, and these would never be next."""
        if not entrant.children or self._rights != EVERYBODY:
            return self._share(entrant)
        bucket, (_, entry, _) = offer
        path, depth = self._tree.path(bucket.queue), entrant.depth + 1
        sender = entrant.children[path[depth] if depth < len(path) else entrant.queue + "/"]
        level = self._share_with(sender, offer)
        more = (level - self._share(sender)) * self._weight(sender)
        if entrant.passed and (sender.is_own or not sender.is_entitled):
            for share, weight in self._unseated(entrant, bucket.priority, self._pools.of(entry.profile.demand)):
                if share < level:
                    more += (level - share) * weight
        return self._share(entrant) + more // self._weight(entrant)

    def _unseated(self, parent: _Entrant, priority: int, pool: Pool) -> list[tuple[int, int]]:
        """Share and weight of the children in which a gang, no less important than this, found no seats in a pool."""
        seen, found = parent.unseated.get((priority, pool), (0, []))
        if seen < len(parent.passed):
            for child in parent.passed[seen:]:
                waiting = [bucket for bucket in child.waiting if bucket.priority >= priority]
                if any(self._lacks_seats(bucket, pool) for bucket in waiting):
                    found.append((self._share(child), self._weight(child)))
            parent.unseated[priority, pool] = (len(parent.passed), found)
        return found

    def _weight(self, entrant: _Entrant) -> int:
        return 1 if entrant.is_own else self._tree.queues[entrant.queue].spec.weight

    def _share(self, entrant: _Entrant) -> int:
        return self._shares.own(entrant.queue) if entrant.is_own else self._shares.queue(entrant.queue)

    def _may_be_owed(self, entrant: _Entrant) -> bool:
        return not entrant.is_own and self._guarantees.may_owe(entrant.queue)
