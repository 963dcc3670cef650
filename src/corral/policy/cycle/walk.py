"""Which gang is next: a total order of all waiting gangs, walked lazily and kept correct while the draft changes.

A bucket has the waiting gangs of one queue and priority. An entry of it has the gangs of one user that want the same.
Only entries that are still open are examined: a demand that does not fit is closed once for all gangs, so a cycle costs
what can start, not what waits. Starts no gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from heapq import heapify, heappop, heapreplace
from typing import Protocol

from corral.core.cluster.resources import Demand, SizeClass, least_gpu_milli
from corral.core.model import NEVER_MS, Gang
from corral.core.queues.backlog import Bucket, Line
from corral.core.queues.quota import ROOT, Shortfall
from corral.core.snapshot import Draft
from corral.policy.cycle.fairness import Shares
from corral.policy.cycle.order import Key, Order
from corral.policy.cycle.tournament import EVERYBODY, Best, Guarantees, Rights, Tournament

HEADS_MAX = 16  # the first gangs in order are found at once; the others are searched for in their turn


class Insistence(Protocol):
    """Which gangs may preempt others."""

    has_given_up: bool  # fewer gangs may preempt from here on

    def may_have_rights(self, queue: str, priority: int) -> bool:
        """False: no gang of this queue and priority may preempt."""

    def may_insist(self, queue: str, priority: int, demand: Demand) -> bool:
        """False: no gang of this queue and priority that has this demand may preempt."""


class Turn:
    """The turn of one gang, with the bucket and the entry in which it waits."""

    __slots__ = ("bucket", "gang", "line")

    def __init__(self, bucket: Bucket, line: Line, gang: Gang) -> None:
        self.bucket, self.line, self.gang = bucket, line, gang


class _Users:
    """The users who have gangs in a bucket: a heap of users, each with the user's first entry once the user came to
    the top, and for each of these users a heap of entries. Keys only grow, so an outdated key is found on top."""

    __slots__ = ("heap", "heaps", "lines")

    def __init__(self) -> None:
        self.heap: list[tuple[Key, str, Best | None]] = []
        self.lines: dict[str, list[Line]] = {}
        self.heaps: dict[str, list[tuple[Key, int, Line]]] = {}


class Walk:
    """One pass over the backlog in order. After each turn the caller reports which gangs need no other turn.

    Buckets that may preempt are handled one by one. All other buckets are alike: what does not fit for one of them fits
    for none, so it is closed for all at once. ``full``: demands that are closed from the beginning.
    """

    def __init__(
        self,
        draft: Draft,
        order: Order,
        claims: Insistence | None = None,
        full: Set[Demand] = frozenset(),
    ) -> None:
        self._draft, self._order = draft, order
        self._shares, self._guarantees = Shares(draft), Guarantees(draft)
        self._backlog = draft.state.backlog
        self._default_ms = draft.state.settings.default_expected_ms
        self._heads = order.heads(self._backlog, HEADS_MAX)[::-1]  # these have the first turns, if still open
        self._claims = claims
        self._passed: dict[Line, int] = {}
        self._skipped: set[str] = set()
        self._closed_lines: set[Line] = set()
        #: queue -> run time and GPUs (in thousandths) from which its gangs have no turn as owners: see ``demote``
        self._demoted: dict[str, tuple[int, int]] = {}
        #: demands that have no other turn in buckets that may not preempt; all others are open
        self._closed: set[Demand] = set(self._backlog.demands.keys() & full) if full else set()
        self._limits: dict[Demand, int] = {}  # demand -> the same, for runs of at least this time
        #: classes of demands that have neither room nor a gang to preempt: with priority and queue for one bucket, and
        #: without these for all buckets that may not preempt
        self._closed_classes: set[tuple[int, str, SizeClass] | SizeClass] = set()
        #: demand -> closed in all buckets, for runs of at least this time of gangs that avoid no node
        self._hopeless: dict[Demand, int] = {}
        #: queue -> what was closed because of a bound of that queue
        self._for_quota: dict[str, list[Line | tuple[int, str, Demand]]] = {}
        #: priority and queue of a bucket, demand -> only runs shorter than this are open
        self._open_at: dict[tuple[int, str, Demand], int] = {}
        self._users: dict[tuple[int, int, str], _Users] = {}  # by rights and bucket
        self._tournament: Tournament | None = None  # between queues, once it is needed
        #: not None: only buckets that may preempt go on; the value of ``has_given_up`` when that began
        self._narrowed: bool | None = None

    def next(self) -> Turn | None:
        """The first gang in order that may still have a turn."""
        while self._heads:
            if (turn := self.turn_of(self._heads.pop())) is not None:
                return turn
        if self._is_closed and self._narrowed != self._given_up:
            self._narrowed, self._tournament = self._given_up, None  # go on with buckets that may preempt
        if self._tournament is None:
            self._tournament = Tournament(self._guarantees, self._order, self._shares, self._open_buckets(), self._best)
        found = self._tournament.first()
        if found is None:
            return None
        bucket, (_, line, place) = found
        return Turn(bucket, line, self._draft.state.gangs[line.gang(place)])

    def turn_of(self, gang: Gang) -> Turn | None:
        """The turn of a gang, if it may still have one."""
        if gang.id in self._draft.served or gang.id in self._skipped:
            return None
        turn = Turn(self._backlog.buckets[gang.priority, gang.queue], self._backlog.line(gang), gang)
        return turn if self._is_open(turn.bucket, EVERYBODY, turn.line) else None

    def _open_buckets(self) -> list[Bucket]:
        buckets = list(self._backlog.buckets.values())
        return [bucket for bucket in buckets if self._may_insist(bucket)] if self._is_closed else buckets

    def is_barred(self, gang: Gang) -> bool:
        """Whether a gang has no turn for a reason of its own or of its queue, and not because there is no room."""
        if gang.id in self._skipped or (line := self._backlog.line(gang)) in self._closed_lines:
            return True
        shortest = self._open_at.get((gang.priority, gang.queue, gang.demand), NEVER_MS)
        return (line.profile.expected_ms or self._default_ms) >= shortest

    def open_lines(self, priority: int) -> Iterator[Line]:
        """The entries of a priority that may still have a turn."""
        for (desk_priority, _), bucket in self._backlog.buckets.items():
            if desk_priority == priority:
                for lines in self._open_lines(bucket, EVERYBODY):
                    yield from lines.values()

    def first_in(self, queue: str, priority: int) -> Gang | None:
        """The first gang of a queue, of this priority or a higher one, whether owner or borrower."""
        for at in sorted([(each, queue) for each in self._backlog.ages if each >= priority], reverse=True):
            if at in self._backlog.buckets and (best := self._best(self._backlog.buckets[at], EVERYBODY)) is not None:
                return self._draft.state.gangs[best[1].gang(best[2])]
        return None

    def first_of_all(self, queue: str, priority: int) -> Gang | None:
        """As ``first_in``, also if the gang has no other turn because it does not fit."""
        for at in sorted([(each, queue) for each in self._backlog.ages if each >= priority], reverse=True):
            found = None
            for profiles in self._backlog.buckets[at].by_demand.values() if at in self._backlog.buckets else ():
                for line in (line for lines in profiles.values() for line in lines.values()):
                    if (place := self._place(line)) < len(line):
                        key = (
                            *self._order.user(self._shares, queue, line.user),
                            *self._order.line(line, line.rank(place)),
                        )
                        found = min(found or (key, line.gang(place)), (key, line.gang(place)))
            if found is not None:
                return self._draft.state.gangs[found[1]]
        return None

    def skip(self, turn: Turn) -> None:
        """The gang has had its turn; gangs behind it may have one."""
        self._skipped.add(turn.gang.id)
        self._touch(turn.gang.queue)

    def close(self, turn: Turn, from_ms: int = 0) -> None:
        """Its demand does not fit for runs of ``from_ms`` or longer, in its bucket; and if that may not preempt, in all
        buckets that may not."""
        self.close_at_bucket(turn, from_ms)
        if not self._insists(turn.bucket, turn.gang.demand):
            self.close_demand(turn.gang.demand, from_ms)

    @property
    def _is_closed(self) -> bool:
        """Whether no gang has another turn in buckets that may not preempt."""
        return len(self._closed) == len(self._backlog.demands)

    def close_demand(self, demand: Demand, from_ms: int = 0) -> None:
        """A demand does not fit for runs of ``from_ms`` or longer, in any bucket that may not preempt."""
        if all((expected or self._default_ms) >= from_ms for expected in self._backlog.demands[demand]):
            self._closed.add(demand)
        else:
            self._limits[demand] = min(self._limits.get(demand, NEVER_MS), from_ms)
        self._closes((demand,))

    def close_demands(self, demands: Set[Demand]) -> None:
        """Equivalent to closing one demand after the other."""
        self._closed |= demands
        self._closes(demands)

    def close_class(self, turn: Turn) -> None:
        """There is no room for any demand of this class, and no gang that this bucket could preempt. Equivalent to
        giving a turn to each of these demands until a gang is preempted: call ``reopen`` when that happens."""
        kind = self._backlog.class_of[turn.gang.demand]
        self._closed_classes.add((turn.bucket.priority, turn.bucket.queue, kind))
        if not self._insists(turn.bucket, turn.gang.demand):
            self._closed_classes.add(kind)
            self._closes(self._backlog.classes[kind].keys())
        self._touch(turn.gang.queue)

    def reopen(self, left: Iterable[str]) -> None:
        """Gangs of the queues ``left`` were preempted, or a part of a limit is no longer kept for a gang of them. What
        becomes free may be claimed: closed classes and demoted gangs have their turns again, and so have gangs that
        were closed because of a bound of these queues or of a queue above them."""
        freed = {name for queue in left for name in self._draft.queues.path(queue)}
        stale = [each for name in freed for each in self._for_quota.pop(name, ())]
        for each in stale:
            if isinstance(each, Line):
                self._closed_lines.discard(each)
            else:
                self._open_at.pop(each, None)
        if self._closed_classes or stale or self._demoted:
            self._closed_classes.clear()
            self._demoted.clear()
            self._users.clear()
            self._narrowed, self._tournament = None, None

    def close_everywhere(self, demand: Demand, from_ms: int = 0) -> None:
        """No gang with this demand that avoids no node and runs for ``from_ms`` or longer has another turn."""
        self._hopeless[demand] = min(self._hopeless.get(demand, NEVER_MS), from_ms)
        self._closes((demand,))

    def close_for_quota(self, turn: Turn, short: Shortfall, from_ms: int) -> None:
        """A bound blocks the gang: one of its user blocks its entry; one of a queue blocks all gangs of its bucket that
        want the same for ``from_ms`` or longer."""
        lasting = self._for_quota.setdefault(ROOT if short.kind == "not_lent" else short.queue, [])
        if short.kind == "user_limit":
            self.close_line(turn)
            lasting.append(turn.line)
        else:
            self.close_at_bucket(turn, from_ms)
            lasting.append((turn.bucket.priority, turn.bucket.queue, turn.gang.demand))

    def close_for_part(self, turn: Turn, queue: str, from_ms: int) -> None:
        """A part of a limit of ``queue`` is kept for another gang, so this entry has no other turn, and neither have
        gangs of its bucket that want the same for ``from_ms`` or longer."""
        self.close_at_bucket(turn, from_ms)
        self.close_line(turn)
        bucket = turn.bucket
        self._for_quota.setdefault(queue, []).extend([turn.line, (bucket.priority, bucket.queue, turn.gang.demand)])

    def demote(self, turn: Turn, from_ms: int) -> bool:
        """A part of the guarantee of its queue is kept for another gang: gangs of the queue that run for ``from_ms`` or
        longer, and want no fewer GPUs than this one, have their turns as borrowers. False if this one does already."""
        if self._is_demoted(turn.line):
            return False
        length, milli = self._demoted.get(turn.gang.queue, (NEVER_MS, NEVER_MS))
        self._demoted[turn.gang.queue] = (min(length, from_ms), min(milli, least_gpu_milli(turn.gang.demand)))
        self._touch(turn.gang.queue)
        return True

    def _is_demoted(self, line: Line) -> bool:
        length, milli = self._demoted.get(line.queue, (NEVER_MS, NEVER_MS))
        expected = line.profile.expected_ms or self._default_ms
        return expected >= length and least_gpu_milli(line.profile.demand) >= milli

    def close_at_bucket(self, turn: Turn, from_ms: int = 0) -> None:
        """No gang of this bucket that wants the same for ``from_ms`` or longer has another turn."""
        key = (turn.bucket.priority, turn.bucket.queue, turn.gang.demand)
        self._open_at[key] = min(self._open_at.get(key, NEVER_MS), from_ms)
        self._touch(turn.gang.queue)

    def close_line(self, turn: Turn) -> None:
        self._closed_lines.add(turn.line)
        self._touch(turn.gang.queue)

    def served(self, turn: Turn) -> None:
        """The draft has seats for the gang; the usage of its queue and user has grown."""
        queue = turn.gang.queue
        self._shares.charged(queue, turn.gang.user)
        self._guarantees.charged(queue)
        if self._tournament is not None:
            self._tournament.touch(queue, is_charged=True)

    def leaves(self, gang: Gang) -> None:
        """A gang is about to be preempted. Shares count what it releases in the next plan, not in this one."""
        self._shares.remember(gang.queue)

    def _touch(self, queue: str) -> None:
        """The first gang of a queue may be a different one now."""
        if self._tournament is not None:
            self._tournament.touch(queue)

    def _closes(self, demands: Iterable[Demand]) -> None:
        """Gangs with these demands may have no other turn."""
        if self._tournament is not None:
            self._tournament.close(demands)

    def _best(self, bucket: Bucket, rights: Rights) -> Best | None:
        """The first gang of a bucket: of the first user in order, the first entry."""
        if self._is_closed and not self._may_insist(bucket):
            return None
        users = self._users.get((rights, bucket.priority, bucket.queue))
        if users is None:
            users = self._users[rights, bucket.priority, bucket.queue] = self._users_at(bucket, rights)
        heap = users.heap
        while heap:
            key, user, found = heap[0]
            if found is None or self._place(found[1]) != found[2] or not self._is_open(bucket, rights, found[1]):
                found = self._first_of(bucket, rights, users, user)
                if found is None:
                    heappop(heap)
                    continue
            fresh = (*self._order.user(self._shares, bucket.queue, user), *found[0])
            if fresh == key:
                return (key, found[1], found[2])
            heapreplace(heap, (fresh, user, found))
        return None

    def _users_at(self, bucket: Bucket, rights: Rights) -> _Users:
        users = _Users()
        by_user = users.lines
        for lines in self._open_lines(bucket, rights):
            for user, line in lines.items():
                mine = by_user.get(user)
                if mine is None:
                    by_user[user] = [line]
                else:
                    mine.append(line)
        users.heap = [(self._order.user(self._shares, bucket.queue, user), user, None) for user in by_user]
        heapify(users.heap)
        return users

    def _first_of(self, bucket: Bucket, rights: Rights, users: _Users, user: str) -> Best | None:
        """The first of the entries of a user in a bucket."""
        order, heap = self._order, users.heaps.get(user)
        if heap is None:
            lines = users.lines[user]
            heap = [(order.line(line, line.rank(0)), at, line) for at, line in enumerate(lines)]
            heapify(heap)
            users.heaps[user] = heap
        while heap:
            key, at, line = heap[0]
            place = self._place(line)
            if place >= len(line) or not self._is_open(bucket, rights, line):
                heappop(heap)
                continue
            fresh = order.line(line, line.rank(place)) if place else key
            if fresh == key:
                return key, line, place
            heapreplace(heap, (fresh, at, line))
        return None

    def _open_lines(self, bucket: Bucket, rights: Rights) -> list[Mapping[str, Line]]:
        """The entries of a bucket that may still have a turn, by profile: user -> entry."""
        here, limits, default, is_within = bucket.by_demand, self._limits, self._default_ms, self._guarantees.is_within
        may_insist = bool(self._closed) and self._may_insist(bucket)
        found: list[Mapping[str, Line]] = []
        for demand in here if may_insist or not self._closed else here.keys() - self._closed:
            if rights != EVERYBODY and not is_within(bucket.queue, rights, demand):
                continue
            if self._is_closed_at(bucket, demand):
                continue
            profiles, shortest = here[demand], NEVER_MS
            if demand in limits and not self._insists(bucket, demand):
                shortest = limits[demand]
            if self._open_at:
                shortest = min(shortest, self._open_at.get((bucket.priority, bucket.queue, demand), NEVER_MS))
            if shortest > 0:
                hopeless = self._hopeless.get(demand, NEVER_MS)
                for profile, lines in profiles.items():
                    expected = profile.expected_ms or default
                    if expected < shortest and (expected < hopeless or profile.avoid):
                        found.append(lines)
        return found

    def _is_open(self, bucket: Bucket, rights: Rights, line: Line) -> bool:
        profile = line.profile
        demand, expected = profile.demand, profile.expected_ms or self._default_ms
        if self._hopeless and expected >= self._hopeless.get(demand, NEVER_MS) and not profile.avoid:
            return False
        if self._is_closed_at(bucket, demand):
            return False
        is_limited = self._limits and expected >= self._limits.get(demand, NEVER_MS)
        if is_limited and not self._insists(bucket, demand):
            return False
        if rights != EVERYBODY:
            if self._is_demoted(line) or not self._guarantees.is_within(bucket.queue, rights, demand):
                return False
        if self._open_at and expected >= self._open_at.get((bucket.priority, bucket.queue, demand), NEVER_MS):
            return False
        return line not in self._closed_lines

    @property
    def _given_up(self) -> bool:
        return self._claims is not None and self._claims.has_given_up

    def _may_insist(self, bucket: Bucket) -> bool:
        return self._claims is not None and self._claims.may_have_rights(bucket.queue, bucket.priority)

    def _insists(self, bucket: Bucket, demand: Demand) -> bool:
        return self._claims is not None and self._claims.may_insist(bucket.queue, bucket.priority, demand)

    def _is_closed_at(self, bucket: Bucket, demand: Demand) -> bool:
        """Whether a demand has no other turn in a bucket, however short the run."""
        is_closed, classes = demand in self._closed, self._closed_classes
        if classes:
            kind = self._backlog.class_of[demand]
            if (bucket.priority, bucket.queue, kind) in classes:
                return True
            is_closed = is_closed or kind in classes
        return is_closed and not self._insists(bucket, demand)

    def _place(self, line: Line) -> int:
        """The position of the first gang of an entry that this draft has neither served nor skipped."""
        before = self._passed.get(line, 0)
        place = line.next_place(before, self._draft.served, self._skipped)
        if place > before:
            self._passed[line] = place
        return place
