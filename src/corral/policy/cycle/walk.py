"""Which gang is next: a total order of all waiting gangs, walked lazily and kept correct while the draft changes.

A bucket has the waiting gangs of one queue and priority. An entry of it has the gangs of one user that want the same.
Only entries that are still open are examined. Starts no gang and closes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from heapq import heapify, heappop, heapreplace

from corral.core.cluster.resources import Demand
from corral.core.cluster.slots import could_take
from corral.core.model import Gang
from corral.core.plan import NoSeats
from corral.core.queues.backlog import BacklogEntry, Bucket
from corral.core.snapshot import Draft
from corral.policy.backfill.pools import Pool, Pools
from corral.policy.cycle.closures import Changes, Closures
from corral.policy.cycle.fairness import Shares
from corral.policy.cycle.order import Key, Order
from corral.policy.cycle.tournament import EVERYBODY, Best, Guarantees, Rights, Tournament
from corral.policy.preemption.preemptor import Preemptor

HEADS_MAX = 16  # the first gangs in order are found at once; the others are searched for in their turn


class Walk:
    """One pass over the backlog in order. After each turn the caller closes what needs no other turn."""

    def __init__(self, draft: Draft, order: Order, room: Preemptor, closures: Closures, pools: Pools) -> None:
        self._draft = draft
        self._pools = pools
        self._backlog = draft.state.backlog
        self._order = order
        self._room = room
        self._closures = closures
        self._shares = Shares(draft)
        self._guarantees = Guarantees(draft)
        self._firsts = _Firsts(draft, order, closures, self._shares, self._guarantees)
        self._heads = order.heads(self._backlog, HEADS_MAX)[::-1]  # these have the first turns, if still open
        self._tournament: Tournament | None = None  # between queues, once it is needed
        self._ahead: dict[str, Bucket] = {}  # overdue gang -> a bucket with a gang that goes before it
        #: not None: only buckets that may preempt go on; the value of ``has_given_up`` when that began
        self._narrowed: bool | None = None

    def next(self) -> Gang | None:
        """The first gang in order that may still have a turn."""
        self._follow()
        while self._heads:
            if self.is_open(gang := self._heads.pop()):
                return gang
        if self._closures.is_all() and self._narrowed != self._room.has_given_up:
            self._narrowed, self._tournament = self._room.has_given_up, None  # go on with buckets that may preempt
        if self._tournament is None:
            buckets = list(self._backlog.buckets.values())
            if self._closures.is_all():
                buckets = [bucket for bucket in buckets if self._may_preempt(bucket)]
            known = self._guarantees, self._order, self._shares
            self._tournament = Tournament(*known, buckets, self._best, self._lacks_seats, self._pools)
        found = self._tournament.first()
        if found is None:
            return None
        _, (_, entry, place) = found
        return self._draft.state.gangs[entry.gang(place)]

    def is_open(self, gang: Gang) -> bool:
        """Whether a gang may still have a turn."""
        if gang.id in self._draft.served or gang.id in self._closures.gangs:
            return False
        return self._closures.is_open(self._backlog.entry(gang))

    def comes_first(self, gang: Gang) -> bool:
        """Whether a gang that may still have a turn goes before this one in any case, although this one is overdue: one
        of a higher priority that may use the same nodes, or one that could reclaim its seats. Such a gang may be
        hidden, by a gang within its guarantee for example."""
        known = self._ahead.get(gang.id)  # probably still the same
        if known is not None and self._is_ahead_in(known, gang):
            return True
        for bucket in self._backlog.buckets.values():
            if self._is_ahead_in(bucket, gang):
                self._ahead[gang.id] = bucket
                return True
        return False

    def _is_ahead_in(self, bucket: Bucket, gang: Gang) -> bool:
        best = self._best(bucket, EVERYBODY) if bucket.priority > gang.priority else None
        if best is not None and self._pools.overlap(best[1].profile.demand, gang.demand):
            return True
        return self._has_owner(bucket, gang)

    def _has_owner(self, bucket: Bucket, gang: Gang) -> bool:
        """Whether a gang of a bucket could reclaim the seats of this gang."""
        if not self._order.owners_first or not self._guarantees.may_owe(bucket.queue):
            return False
        mine, theirs = self._draft.queues.path(gang.queue), self._draft.queues.path(bucket.queue)
        depth = sum(one == other for one, other in zip(mine, theirs, strict=False))
        is_owner = depth < len(mine) and self._guarantees.is_within(gang.queue, depth, gang.demand)
        return not is_owner and depth < len(theirs) and self._best(bucket, depth) is not None

    def open_entries(self, priority: int) -> Iterator[BacklogEntry]:
        """The entries of a priority that may still have a turn."""
        for bucket in self._backlog.buckets.values():
            if bucket.priority == priority:
                for entries in self._firsts.open_entries(bucket, EVERYBODY):
                    yield from entries.values()

    def first_in(self, queue: str, priority: int) -> Gang | None:
        """The first gang of a queue, of this priority or a higher one, whether owner or borrower."""
        self._follow()
        for bucket in self._buckets_of(queue, priority):
            if (best := self._best(bucket, EVERYBODY)) is not None:
                return self._draft.state.gangs[best[1].gang(best[2])]
        return None

    def first_of_all(self, queue: str, priority: int) -> Gang | None:
        """As ``first_in``, also if the gang has no other turn because it does not fit."""
        for bucket in self._buckets_of(queue, priority):
            if (name := self._firsts.first_of_all(bucket)) is not None:
                return self._draft.state.gangs[name]
        return None

    def served(self, gang: Gang) -> None:
        """The draft has seats for the gang; the usage of its queue and user has grown."""
        self._shares.charged(gang.queue, gang.user)
        self._guarantees.charged(gang.queue)
        if self._tournament is not None:
            self._tournament.touch(gang.queue, is_charged=True)

    def leaves(self, gang: Gang) -> None:
        """A gang is about to be preempted. Shares count what it releases in the next plan, not in this one. Guarantees
        count it now: a gang of its queue that is within them again could reclaim what others get before it."""
        self._shares.remember(gang.queue)
        if self._guarantees.charged(gang.queue):
            self._closures.changes.is_reopened = True

    def _follow(self) -> None:
        """Take note of what was closed and reopened."""
        changes, self._closures.changes = self._closures.changes, Changes()
        if changes.is_reopened:
            self._firsts.forget()
            self._narrowed, self._tournament = None, None
        elif self._tournament is not None:
            for queue in changes.queues:
                self._tournament.touch(queue)
            self._tournament.close(changes.demands)

    def _best(self, bucket: Bucket, rights: Rights) -> Best | None:
        if self._closures.is_all() and not self._may_preempt(bucket):
            return None
        return self._firsts.best(bucket, rights)

    def _lacks_seats(self, bucket: Bucket, pool: Pool) -> bool:
        """Whether a gang of a bucket waits for seats in a pool, and could have them if others had ended."""
        for entry in _entries_of(bucket):
            demand, place = entry.profile.demand, entry.next_place(0, self._draft.served, ())
            if place < len(entry) and self._pools.of(demand) == pool:
                verdict = self._closures.why(self._draft.state.gangs[entry.gang(place)])
                if isinstance(verdict, NoSeats) and self._could_fit(demand):
                    return True
        return False

    def _could_fit(self, demand: Demand) -> bool:
        """Whether a demand could have seats if nothing else ran. Where all nodes accept tasks, all that waits could."""
        if self._are_all_open:
            return True
        return could_take(self._draft.snapshot.emptied, demand, demand.smallest)

    @cached_property
    def _are_all_open(self) -> bool:
        return all(self._draft.state.capacity.open)

    def _may_preempt(self, bucket: Bucket) -> bool:
        return self._room.may_have_rights(bucket.queue, bucket.priority)

    def _buckets_of(self, queue: str, priority: int) -> list[Bucket]:
        """The buckets of a queue, of this priority or a higher one, the highest first."""
        buckets = self._backlog.buckets
        priorities = sorted([each for each in self._backlog.ages if each >= priority], reverse=True)
        return [buckets[each, queue] for each in priorities if (each, queue) in buckets]


class _Users:
    """The users who have gangs in a bucket: a heap of users, each with the user's first entry once the user came to
    the top, and for each of these users a heap of entries. Keys only grow, so an outdated key is found on top."""

    __slots__ = ("entries", "heap", "heaps")

    def __init__(self) -> None:
        self.heap: list[tuple[Key, str, Best | None]] = []
        self.entries: dict[str, list[BacklogEntry]] = {}
        self.heaps: dict[str, list[tuple[Key, int, BacklogEntry]]] = {}


class _Firsts:
    """The first gang of each bucket: of the first user in order, the first entry."""

    def __init__(self, draft: Draft, order: Order, closures: Closures, shares: Shares, guarantees: Guarantees) -> None:
        self._draft = draft
        self._order = order
        self._closures = closures
        self._shares = shares
        self._guarantees = guarantees
        self._passed: dict[BacklogEntry, int] = {}
        self._users: dict[tuple[Rights, int, str], _Users] = {}  # by rights and bucket

    def best(self, bucket: Bucket, rights: Rights) -> Best | None:
        at = (rights, bucket.priority, bucket.queue)
        users = self._users.get(at)
        if users is None:
            users = self._users[at] = self._users_in(bucket, rights)
        heap = users.heap
        while heap:
            key, user, found = heap[0]
            if found is None or self._place(found[1]) != found[2] or not self._is_open(found[1], rights):
                found = self._first_of(users, user, rights)
                if found is None:
                    heappop(heap)
                    continue
            fresh = (*self._order.user(self._shares, bucket.queue, user), *found[0])
            if fresh == key:
                return (key, found[1], found[2])
            heapreplace(heap, (fresh, user, found))
        return None

    def first_of_all(self, bucket: Bucket) -> str | None:
        """The same for owners and borrowers, also if it is closed; only gangs that had their turn are passed over."""
        found: list[tuple[Key, str]] = []
        for entry in _entries_of(bucket):
            if (place := self._place(entry)) < len(entry):
                user = self._order.user(self._shares, bucket.queue, entry.user)
                found.append(((*user, *self._order.entry(self._draft.snapshot, entry, place)), entry.gang(place)))
        return min(found)[1] if found else None

    def open_entries(self, bucket: Bucket, rights: Rights) -> list[Mapping[str, BacklogEntry]]:
        if rights == EVERYBODY:
            return self._closures.open_entries(bucket)
        return self._closures.open_entries(bucket, partial(self._guarantees.is_within, bucket.queue, rights))

    def forget(self) -> None:
        """What was closed may be open again."""
        self._users.clear()

    def _users_in(self, bucket: Bucket, rights: Rights) -> _Users:
        users = _Users()
        by_user = users.entries
        for entries in self.open_entries(bucket, rights):
            for user, entry in entries.items():
                mine = by_user.get(user)
                if mine is None:
                    by_user[user] = [entry]
                else:
                    mine.append(entry)
        users.heap = [(self._order.user(self._shares, bucket.queue, user), user, None) for user in by_user]
        heapify(users.heap)
        return users

    def _first_of(self, users: _Users, user: str, rights: Rights) -> Best | None:
        """The first of the entries of a user in a bucket."""
        order, snapshot = self._order, self._draft.snapshot
        heap = users.heaps.get(user)
        if heap is None:
            heap = [(order.entry(snapshot, entry, 0), at, entry) for at, entry in enumerate(users.entries[user])]
            heapify(heap)
            users.heaps[user] = heap
        while heap:
            key, at, entry = heap[0]
            place = self._place(entry)
            if place >= len(entry) or not self._is_open(entry, rights):
                heappop(heap)
                continue
            fresh = order.entry(snapshot, entry, place) if place else key
            if fresh == key:
                return key, entry, place
            heapreplace(heap, (fresh, at, entry))
        return None

    def _is_open(self, entry: BacklogEntry, rights: Rights) -> bool:
        if not self._closures.is_open(entry):
            return False
        if rights == EVERYBODY:
            return True
        is_within = self._guarantees.is_within(entry.queue, rights, entry.profile.demand)
        return is_within and not self._closures.is_demoted(entry)

    def _place(self, entry: BacklogEntry) -> int:
        """The position of the first gang of an entry that this draft has neither served nor skipped."""
        before = self._passed.get(entry, 0)
        place = entry.next_place(before, self._draft.served, self._closures.gangs)
        if place > before:
            self._passed[entry] = place
        return place


def _entries_of(bucket: Bucket) -> Iterator[BacklogEntry]:
    """All entries of a bucket, whether open or not."""
    for profiles in bucket.by_demand.values():
        for entries in profiles.values():
            yield from entries.values()
