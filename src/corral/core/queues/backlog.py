"""Who waits, kept in order as it changes, by shape: gangs that differ only in age stand in one line.

A desk serves one priority of one queue. At a desk, lines are found by demand (what does not fit is skipped at once,
however many wait), then by profile, then by user. Knows order within a line; the order between lines is policy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container, Iterator
from heapq import heappop, heappush
from itertools import islice

from corral.core.cluster.resources import Demand, SizeClass, least_gpu_milli, size_class
from corral.core.model import Gang, Profile


class Line:
    """Gangs of one shape, first in line first. Taking the first and adding a last cost the same at any length."""

    __slots__ = ("_gangs", "_ranks", "_start", "priority", "profile", "queue", "user")

    def __init__(self, queue: str, priority: int, user: str, profile: Profile) -> None:
        self.queue, self.priority, self.user, self.profile = queue, priority, user, profile
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
        """The first place from this one on whose gang was neither served nor skipped."""
        gangs, end, at = self._gangs, len(self._gangs), self._start + place
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
        assert self._gangs[at] == gang.id, "a gang is not where its rank says"
        if at > self._start:
            del self._ranks[at], self._gangs[at]
            return
        self._gangs[at] = ""
        self._start += 1
        if self._start > 32 and self._start * 2 > len(self._ranks):
            del self._ranks[: self._start], self._gangs[: self._start]
            self._start = 0


#: Lines of one demand at a desk: by profile, then by user.
Lines = dict[Profile, dict[str, Line]]


class Desk:
    """All lines of one queue at one priority."""

    __slots__ = ("by_demand", "count", "priority", "queue")

    def __init__(self, queue: str, priority: int) -> None:
        self.queue, self.priority = queue, priority
        self.by_demand: dict[Demand, Lines] = {}
        self.count = 0


class Waiting:
    """How much waits in a queue: gangs, and the GPUs that they want at least, in thousandths."""

    __slots__ = ("gangs", "gpu_milli")

    def __init__(self) -> None:
        self.gangs = self.gpu_milli = 0


class Ages:
    """Everyone of one priority who stands in a line, oldest first."""

    def __init__(self) -> None:
        self._in_order: OrderedDict[str, Gang] = OrderedDict()
        self._returned: dict[str, Gang] = {}  # those who came back into line among younger ones
        self._by_rank: list[tuple[int, str]] = []  # a heap of these; who has left since is dropped when he comes up
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
    """All lines, found by desk."""

    def __init__(self) -> None:
        self.ages: dict[int, Ages] = {}
        self.desks: dict[tuple[int, str], Desk] = {}
        #: demand -> expected length of run -> how many in line want just that
        self.demands: dict[Demand, dict[int | None, int]] = {}
        #: the same demands by class
        self.classes: dict[SizeClass, dict[Demand, None]] = {}
        self.class_of: dict[Demand, SizeClass] = {}
        self.queues: dict[str, Waiting] = {}  # queue -> how much waits there, not counting queues below it
        self.count = 0

    def add(self, gang: Gang) -> None:
        profile, demand = gang.profile, gang.profile.demand
        key = (gang.priority, gang.queue)
        desk = self.desks.get(key)
        if desk is None:
            desk = self.desks[key] = Desk(gang.queue, gang.priority)
        lines = desk.by_demand.setdefault(demand, {}).setdefault(profile, {})
        line = lines.get(gang.user)
        if line is None:
            line = lines[gang.user] = Line(gang.queue, gang.priority, gang.user, profile)
        line.add(gang)
        ages = self.ages.get(gang.priority)
        if ages is None:
            ages = self.ages[gang.priority] = Ages()
        ages.add(gang)
        desk.count += 1
        self.count += 1
        waiting = self.queues.get(gang.queue)
        if waiting is None:
            waiting = self.queues[gang.queue] = Waiting()
        waiting.gangs += 1
        waiting.gpu_milli += least_gpu_milli(demand)
        lengths = self.demands.get(demand)
        if lengths is None:
            lengths = self.demands[demand] = {}
            self.class_of[demand] = kind = size_class(demand)
            self.classes.setdefault(kind, {})[demand] = None
        lengths[profile.expected_ms] = lengths.get(profile.expected_ms, 0) + 1

    def remove(self, gang: Gang) -> None:
        demand = gang.profile.demand
        key = (gang.priority, gang.queue)
        desk = self.desks[key]
        line = desk.by_demand[demand][gang.profile][gang.user]
        line.remove(gang)
        self.ages[gang.priority].remove(gang)
        desk.count -= 1
        self.count -= 1
        waiting = self.queues[gang.queue]
        waiting.gangs -= 1
        waiting.gpu_milli -= least_gpu_milli(demand)
        if not waiting.gangs:
            del self.queues[gang.queue]
        lengths, expected = self.demands[demand], gang.profile.expected_ms
        lengths[expected] -= 1
        if not lengths[expected]:
            del lengths[expected]
        if not line:
            _prune(desk, demand, gang)
        if not desk.count:
            del self.desks[key]
        if not lengths:
            del self.demands[demand]
            kind = self.class_of.pop(demand)
            del self.classes[kind][demand]
            if not self.classes[kind]:
                del self.classes[kind]

    def line(self, gang: Gang) -> Line:
        return self.desks[gang.priority, gang.queue].by_demand[gang.profile.demand][gang.profile][gang.user]

    def lines(self) -> Iterator[Line]:
        for desk in self.desks.values():
            for profiles in desk.by_demand.values():
                for lines in profiles.values():
                    yield from lines.values()


def _prune(desk: Desk, demand: Demand, gang: Gang) -> None:
    """An empty line leaves nothing behind: a long history must not make the present slow."""
    profiles = desk.by_demand[demand]
    del profiles[gang.profile][gang.user]
    if not profiles[gang.profile]:
        del profiles[gang.profile]
    if not profiles:
        del desk.by_demand[demand]
