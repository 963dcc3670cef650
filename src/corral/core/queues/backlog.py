"""The waiting gangs, kept in order as they change, by shape: gangs that differ only in age share one entry.

A bucket has the gangs of one priority of one queue. In it, entries are found by demand (a demand that does not fit is
skipped at once, for any number of gangs), then by profile, then by user. Knows the order within an entry; the order
between entries is policy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import islice, takewhile

from corral.core.cluster.resources import Demand, SizeClass, least_gpu_milli, size_class
from corral.core.model import Gang, Profile


class BacklogEntry:
    """Gangs of one shape, the first to be served first. Removing the first and adding a last are O(1)."""

    __slots__ = ("_gangs", "_ranks", "_start", "gpu_milli", "priority", "profile", "queue", "user")

    def __init__(self, queue: str, priority: int, user: str, profile: Profile) -> None:
        self.queue = queue
        self.priority = priority
        self.user = user
        self.profile = profile
        self.gpu_milli = least_gpu_milli(profile.demand)  # the minimum that each of them wants
        self._ranks: list[int] = []
        self._gangs: list[str] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._ranks) - self._start

    def __iter__(self) -> Iterator[str]:
        return iter(self._gangs[self._start :])

    def gang(self, place: int) -> str:
        return self._gangs[self._start + place]

    def rank(self, place: int) -> int:
        return self._ranks[self._start + place]

    def next_place(self, place: int, served: Container[str], skipped: Container[str]) -> int:
        """The first position from this one on whose gang was neither served nor skipped."""
        gangs = self._gangs
        end = len(gangs)
        at = self._start + place
        while at < end and (gangs[at] in served or gangs[at] in skipped):
            at += 1
        return at - self._start

    def add(self, gang: Gang) -> None:
        if not self._ranks or gang.rank > self._ranks[-1]:
            self._ranks.append(gang.rank)
            self._gangs.append(gang.id)
            return
        at = bisect_left(self._ranks, gang.rank, self._start)
        self._ranks.insert(at, gang.rank)
        self._gangs.insert(at, gang.id)

    def remove(self, gang: Gang) -> None:
        at = bisect_left(self._ranks, gang.rank, self._start)
        assert self._gangs[at] == gang.id, "a gang is not at the position of its rank"
        if at > self._start:
            del self._ranks[at], self._gangs[at]
            return
        self._gangs[at] = ""
        self._start += 1
        if self._start > 32 and self._start * 2 > len(self._ranks):
            del self._ranks[: self._start], self._gangs[: self._start]
            self._start = 0


#: Entries of one demand in a bucket: by profile, then by user.
Entries = dict[Profile, dict[str, BacklogEntry]]


class Bucket:
    """All entries of one queue at one priority."""

    __slots__ = ("by_demand", "count", "priority", "queue")

    def __init__(self, queue: str, priority: int) -> None:
        self.queue, self.priority = queue, priority
        self.by_demand: dict[Demand, Entries] = {}
        self.count = 0


class Waiting:
    """The backlog of a queue: gangs, and the minimum of GPUs that they want, in thousandths."""

    __slots__ = ("gangs", "gpu_milli")

    def __init__(self) -> None:
        self.gangs = self.gpu_milli = 0


class Ages:
    """All waiting gangs of one priority, oldest first."""

    def __init__(self) -> None:
        self._in_order: OrderedDict[str, Gang] = OrderedDict()
        self._returned: dict[str, Gang] = {}  # requeued gangs among younger ones
        self._by_rank: list[
            tuple[int, str]
        ] = []  # a heap of these; gangs that no longer wait are dropped when they come up
        self._newest = -1

    def __len__(self) -> int:
        return len(self._in_order) + len(self._by_rank)

    def add(self, gang: Gang) -> None:
        if gang.rank > self._newest:
            self._newest = gang.rank
            self._in_order[gang.id] = gang
        else:
            self._returned[gang.id] = gang
            heappush(self._by_rank, (gang.rank, gang.id))

    def remove(self, gang: Gang) -> None:
        if self._in_order.pop(gang.id, None) is None:
            del self._returned[gang.id]
            if len(self._by_rank) > 64 + 2 * len(self._returned):
                self._by_rank = sorted((gang.rank, gang.id) for gang in self._returned.values())

    def longest(self, since_ms: int, most: int) -> tuple[list[Gang], bool]:
        """Gangs that have waited since then or longer, longest first: all requeued ones, and of the others, which are
        in this order, the first few; and whether these are all."""
        found = list(takewhile(lambda gang: gang.waiting_since_ms <= since_ms, islice(self._in_order.values(), most)))
        is_all = len(found) < most
        found += [gang for gang in self._returned.values() if gang.waiting_since_ms <= since_ms]
        return sorted(found, key=lambda gang: (gang.waiting_since_ms, gang.rank)), is_all

    def oldest(self, most: int) -> list[Gang]:
        """The oldest few, oldest first."""
        back: list[tuple[int, str]] = []
        while self._by_rank and len(back) < most:
            top = heappop(self._by_rank)
            gang = self._returned.get(top[1])
            if gang is not None and gang.rank == top[0] and top not in back[-1:]:
                back.append(top)
        for entry in back:
            heappush(self._by_rank, entry)
        found = [*islice(self._in_order.values(), most), *(self._returned[name] for _, name in back)]
        return sorted(found, key=lambda gang: gang.rank)[:most]


class Backlog:
    """All entries, found by bucket."""

    def __init__(self) -> None:
        self.ages: dict[int, Ages] = {}
        self.buckets: dict[tuple[int, str], Bucket] = {}
        #: demand -> expected run time -> number of waiting gangs
        self.demands: dict[Demand, dict[int | None, int]] = {}
        #: demand -> (expected run time, how much longer it may be) -> number of gangs
        self._overruns: dict[Demand, dict[tuple[int | None, int], int]] = {}
        #: the same demands by class
        self.classes: dict[SizeClass, dict[Demand, None]] = {}
        self.class_of: dict[Demand, SizeClass] = {}
        self.queues: dict[str, Waiting] = {}  # queue -> its backlog, without queues below it
        self.count = 0

    def add(self, gang: Gang) -> None:
        profile, demand = gang.profile, gang.profile.demand
        key = (gang.priority, gang.queue)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(gang.queue, gang.priority)
        entries = bucket.by_demand.setdefault(demand, {}).setdefault(profile, {})
        entry = entries.get(gang.user)
        if entry is None:
            entry = entries[gang.user] = BacklogEntry(gang.queue, gang.priority, gang.user, profile)
        entry.add(gang)
        ages = self.ages.get(gang.priority)
        if ages is None:
            ages = self.ages[gang.priority] = Ages()
        ages.add(gang)
        bucket.count += 1
        self.count += 1
        waiting = self.queues.get(gang.queue)
        if waiting is None:
            waiting = self.queues[gang.queue] = Waiting()
        waiting.gangs += 1
        waiting.gpu_milli += entry.gpu_milli
        lengths = self.demands.get(demand)
        if lengths is None:
            lengths = self.demands[demand] = {}
            self._overruns[demand] = {}
            self.class_of[demand] = kind = size_class(demand)
            self.classes.setdefault(kind, {})[demand] = None
        lengths[profile.expected_ms] = lengths.get(profile.expected_ms, 0) + 1
        overruns, length = self._overruns[demand], (profile.expected_ms, gang.overrun_ms)
        overruns[length] = overruns.get(length, 0) + 1

    def not_gone_ms(self, demand: Demand, within_ms: int, default_ms: int) -> int:
        """All gangs with this demand that are expected to run for at least the returned time may still run after
        ``within_ms``. ``default_ms``: expected run time of gangs without an estimate."""
        lengths = [(expected or default_ms, overrun) for expected, overrun in self._overruns[demand]]
        return max([expected + 1 for expected, overrun in lengths if expected + overrun <= within_ms], default=0)

    @contextmanager
    def joined_by(self, gangs: Sequence[Gang]) -> Iterator[None]:
        """As if these waited too: for a plan that has just requeued them. Restores the backlog."""
        for gang in gangs:
            self.add(gang)
        try:
            yield
        finally:
            for gang in gangs:
                self.remove(gang)

    def remove(self, gang: Gang) -> None:
        demand = gang.profile.demand
        key = (gang.priority, gang.queue)
        bucket = self.buckets[key]
        entry = bucket.by_demand[demand][gang.profile][gang.user]
        entry.remove(gang)
        self.ages[gang.priority].remove(gang)
        bucket.count -= 1
        self.count -= 1
        waiting = self.queues[gang.queue]
        waiting.gangs -= 1
        waiting.gpu_milli -= entry.gpu_milli
        if not waiting.gangs:
            del self.queues[gang.queue]
        lengths, expected = self.demands[demand], gang.profile.expected_ms
        lengths[expected] -= 1
        if not lengths[expected]:
            del lengths[expected]
        overruns, length = self._overruns[demand], (expected, gang.overrun_ms)
        overruns[length] -= 1
        if not overruns[length]:
            del overruns[length]
        if not entry:
            _prune(bucket, demand, gang)
        if not bucket.count:
            del self.buckets[key]
        if not lengths:
            del self.demands[demand], self._overruns[demand]
            kind = self.class_of.pop(demand)
            del self.classes[kind][demand]
            if not self.classes[kind]:
                del self.classes[kind]

    def entry(self, gang: Gang) -> BacklogEntry:
        return self.buckets[gang.priority, gang.queue].by_demand[gang.profile.demand][gang.profile][gang.user]

    def entries(self) -> Iterator[BacklogEntry]:
        for bucket in self.buckets.values():
            for profiles in bucket.by_demand.values():
                for entries in profiles.values():
                    yield from entries.values()


def _prune(bucket: Bucket, demand: Demand, gang: Gang) -> None:
    """Remove an empty entry completely, so that a long history does not slow down later plans."""
    profiles = bucket.by_demand[demand]
    del profiles[gang.profile][gang.user]
    if not profiles[gang.profile]:
        del profiles[gang.profile]
    if not profiles:
        del bucket.by_demand[demand]
