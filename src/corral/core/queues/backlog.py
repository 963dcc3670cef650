"""Who waits, kept in order as it changes, by shape: gangs that differ only in age stand in one line.

A desk serves one priority of one queue. At a desk, lines are found by demand (what does not fit is skipped at once,
however many wait), then by profile, then by user. Knows order within a line; the order between lines is policy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice

from corral.core.cluster.resources import Demand
from corral.core.model import Gang, GangState, Profile


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


class Ages:
    """Everyone of one priority who stands in a line, oldest first. Who left is dropped when he comes to the front."""

    def __init__(self) -> None:
        self._in_order: deque[Gang] = deque()
        self._returned: list[tuple[int, str, Gang]] = []  # a heap of those who came back into line
        self._newest = -1
        self._gone = 0

    def add(self, gang: Gang) -> None:
        if gang.rank > self._newest:
            self._newest = gang.rank
            self._in_order.append(gang)
        else:
            heappush(self._returned, (gang.rank, gang.id, gang))

    def prune(self, priority: int) -> None:
        """Somebody has left. Who is gone is dropped at the front at once, and everywhere when there are many."""
        while self._in_order and not _stands(self._in_order[0], priority):
            self._in_order.popleft()
        while self._returned and not _stands(self._returned[0][2], priority):
            heappop(self._returned)
        self._gone += 1
        if self._gone > 64 + len(self._in_order) // 64:
            self._in_order = deque(gang for gang in self._in_order if _stands(gang, priority))
            self._gone = 0

    def oldest(self, priority: int, most: int) -> list[Gang]:
        """The oldest few, oldest first."""
        first = list(islice((gang for gang in self._in_order if _stands(gang, priority)), most))
        back = [gang for _, _, gang in nsmallest(most, self._returned) if _stands(gang, priority)]
        return sorted({gang.id: gang for gang in first + back}.values(), key=lambda gang: gang.rank)[:most]


def _stands(gang: Gang, priority: int) -> bool:
    return gang.state is GangState.WAITING and not gang.blockers and not gang.claim and gang.priority == priority


class Backlog:
    """All lines, found by desk."""

    def __init__(self) -> None:
        self.ages: dict[int, Ages] = {}
        self.desks: dict[tuple[int, str], Desk] = {}
        #: demand -> expected length of run -> how many in line want just that
        self.demands: dict[Demand, dict[int | None, int]] = {}
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
        lengths = self.demands.setdefault(demand, {})
        lengths[profile.expected_ms] = lengths.get(profile.expected_ms, 0) + 1

    def remove(self, gang: Gang) -> None:
        demand = gang.profile.demand
        key = (gang.priority, gang.queue)
        desk = self.desks[key]
        line = desk.by_demand[demand][gang.profile][gang.user]
        line.remove(gang)
        self.ages[gang.priority].prune(gang.priority)
        desk.count -= 1
        self.count -= 1
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
