"""Who is next: a total order over all who wait, walked lazily and kept right while the draft changes.

An order gives keys; the walk merges them. It looks only at lines that are still open: a demand that does not fit is
closed once for everybody, so a cycle costs what can happen, not what waits. Starts nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, Protocol

from corral.core.cluster.resources import GPU_MILLI, Demand
from corral.core.model import NEVER_MS, Gang
from corral.core.queues.backlog import Desk, Line
from corral.core.snapshot import Draft
from corral.policy.fairness import Shares

Key = tuple[Any, ...]
Best = tuple[Key, Line, int]  # key, line, how far the line has moved on


class Order(Protocol):
    """How desks rank, users at a desk, and lines of a user. Keys may only grow while a draft is filled."""

    looks_inside: bool  # whether the key of a desk depends on who is first at it
    owners_first: bool  # whether what lies within a queue's guarantee goes before everything else

    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key: ...

    def user(self, shares: Shares, queue: str, user: str) -> Key: ...

    def line(self, line: Line, rank: int) -> Key: ...


class ByArrival:
    """First come, first served, over all queues."""

    looks_inside = True
    owners_first = False

    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return first

    def user(self, shares: Shares, queue: str, user: str) -> Key:
        return ()

    def line(self, line: Line, rank: int) -> Key:
        return (rank,)


class ByPriority(ByArrival):
    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return (-desk.priority, *first)


class ByLength(ByArrival):
    """Shortest expected run first. What states no length comes last."""

    def line(self, line: Line, rank: int) -> Key:
        expected = line.profile.expected_ms
        return (expected is None, expected or 0, rank)


class ByShare:
    """The queue that has had least of its share, then the user who has, then age."""

    looks_inside = False
    owners_first = False

    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return (shares.path(desk.queue), -desk.priority)

    def user(self, shares: Shares, queue: str, user: str) -> Key:
        return (shares.user(queue, user), user)

    def line(self, line: Line, rank: int) -> Key:
        return (rank,)


class ByPriorityAndShare(ByShare):
    """Owners within their guarantee first, since they could take it back from anyone; then priority; then share."""

    owners_first = True

    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return (-desk.priority, shares.path(desk.queue))


OWNER, BORROWER = 0, 1


def _gpu_milli(demand: Demand) -> int:
    """The least a gang would be charged; more than any headroom for one that wants no whole GPUs."""
    return demand.task.gpus * 1000 * (demand.smallest + demand.spares) or NEVER_MS


class Turn:
    """Whose turn it is: a line, and the gang that is first in it."""

    __slots__ = ("desk", "gang", "line")

    def __init__(self, desk: Desk, line: Line, gang: Gang) -> None:
        self.desk, self.line, self.gang = desk, line, gang


class Walk:
    """One pass over the backlog in order. Whoever walks says after each turn who need not have another one.

    Desks that may have others make room are treated one by one. All other desks are alike: what does not fit for one of
    them fits for none, so it is closed for all at once.
    """

    def __init__(
        self,
        draft: Draft,
        order: Order,
        first: Iterable[Gang] = (),
        may_insist: Callable[[Desk], bool] = lambda desk: False,
    ) -> None:
        self._draft, self._order = draft, order
        self._shares = Shares(draft)
        self._backlog = draft.state.backlog
        self._first = list(first)[::-1]  # gangs that go before everyone else
        self._may_insist = may_insist
        self._is_narrowed = False
        self._keys: dict[tuple[int, int, str], tuple[int, Key]] = {}
        self._charges: dict[str, int] = {}  # outermost queue -> how often something below it was charged
        self._rooms: dict[str, int] = {}  # queue -> what it may still have within its guarantee
        self._passed: dict[Line, int] = {}
        self._skipped: set[str] = set()
        self._closed_lines: set[Line] = set()
        #: demand -> only runs shorter than this still have a turn, at desks that may not insist
        self._open: dict[Demand, int] = dict.fromkeys(self._backlog.demands, NEVER_MS)
        #: the same for single desks: (desk, demand) -> shorter than this
        self._open_at: dict[tuple[int, str, Demand], int] = {}
        #: desk -> a heap of its users, each with the first of his lines; keys only grow, so a stale one is found on top
        self._firsts: dict[tuple[int, int, str], list[tuple[Key, str, Best]]] = {}
        desks = self._backlog.desks
        self._heap: list[tuple[Key, int, tuple[int, str]]] = [
            (self._key(desk, BORROWER), BORROWER, at) for at, desk in desks.items()
        ]
        if order.owners_first:
            owners = [at for at in desks if self._headroom(at[1]) > 0]
            self._heap += [(self._key(desks[at], OWNER), OWNER, at) for at in owners]
        heapify(self._heap)

    def next(self) -> Turn | None:
        """The first gang in order that may still have a turn."""
        while self._first:
            gang = self._first.pop()
            if gang.id not in self._draft.served and gang.id not in self._skipped:
                desk = self._backlog.desks[gang.priority, gang.queue]
                return Turn(desk, self._backlog.line(gang), gang)
        if not self._open and not self._is_narrowed:
            self._narrow()
        while self._heap:
            key, rights, at = self._heap[0]
            desk = self._backlog.desks[at]
            if not self._order.looks_inside and (fresh := self._known_key(desk, rights)) > key:
                heapreplace(self._heap, (fresh, rights, at))
                continue
            best = self._best(desk, rights) if self._open or self._is_insisting(desk) else None
            if best is None:
                heappop(self._heap)
                continue
            if self._order.looks_inside and (fresh := self._key(desk, rights, best)) > key:
                heapreplace(self._heap, (fresh, rights, at))
                continue
            _, line, place = best
            return Turn(desk, line, self._draft.state.gangs[line.gang(place)])
        return None

    def _narrow(self) -> None:
        """Nothing fits any more for those who may not insist: go on with the others alone."""
        self._heap = [entry for entry in self._heap if self._is_insisting(self._backlog.desks[entry[2]])]
        heapify(self._heap)
        self._is_narrowed = True

    def skip(self, turn: Turn) -> None:
        """It has had its turn; who stands behind it may have one."""
        self._skipped.add(turn.gang.id)

    def close(self, turn: Turn, from_ms: int = 0) -> None:
        """It does not fit for a run of so long or longer: not here, and not at any other desk that may not insist."""
        self.close_at_desk(turn, from_ms)
        if not self._is_insisting(turn.desk):
            self.close_demand(turn.gang.demand, from_ms)

    def open_demands(self) -> list[Demand]:
        """The demands that may still have a turn at desks that may not insist."""
        return list(self._open)

    def close_demand(self, demand: Demand, from_ms: int = 0) -> None:
        if demand not in self._open:
            return
        default = self._draft.state.settings.default_expected_ms
        if all((expected or default) >= from_ms for expected in self._backlog.demands[demand]):
            del self._open[demand]
        else:
            self._open[demand] = min(self._open[demand], from_ms)

    def close_at_desk(self, turn: Turn, from_ms: int = 0) -> None:
        """Nobody at this desk who wants this, for so long or longer, has another turn."""
        key = (turn.desk.priority, turn.desk.queue, turn.gang.demand)
        self._open_at[key] = min(self._open_at.get(key, NEVER_MS), from_ms)

    def close_line(self, turn: Turn) -> None:
        self._closed_lines.add(turn.line)

    def served(self, turn: Turn) -> None:
        """The draft has seats for it; its queue and user have had more now."""
        self._shares.charged(turn.gang.queue, turn.gang.user)
        path = self._draft.queues.path(turn.gang.queue)
        self._charges[path[1]] = self._charges.get(path[1], 0) + 1
        for name in path:
            self._rooms.pop(name, None)

    def _known_key(self, desk: Desk, rights: int) -> Key:
        """The key of a desk, remembered until something is charged to a relative of its queue."""
        where = (rights, desk.priority, desk.queue)
        charges = self._charges.get(desk.queue.partition("/")[0], 0)
        known = self._keys.get(where)
        if known is None or known[0] != charges:
            known = self._keys[where] = (charges, self._key(desk, rights))
        return known[1]

    def _key(self, desk: Desk, rights: int, best: Best | None = None) -> Key:
        first: Key = ()
        if self._order.looks_inside:
            best = best or self._best(desk, rights)
            if best is None:
                return (_LAST,)
            first = best[0]
        if not self._order.owners_first:
            return (*self._order.desk(self._shares, desk, first), desk.queue)
        # level by level: whoever is within its guarantee could take it back from a relative who is not
        above = tuple(self._headroom(name) <= 0 for name in self._draft.queues.path(desk.queue)[1:-1])
        return ((*above, rights), *self._order.desk(self._shares, desk, first), desk.queue)

    def _best(self, desk: Desk, rights: int) -> Best | None:
        """The first at a desk: of the users by order, the first of that user's lines."""
        heap = self._firsts.get((rights, desk.priority, desk.queue))
        open_here: list[Mapping[str, Line]] | None = None
        if heap is None:
            open_here = self._open_lines(desk, rights)
            heap = self._firsts[rights, desk.priority, desk.queue] = []
            for user, earliest in self._firsts_of_all(open_here).items():
                heap.append((self._whole(desk, user, earliest), user, earliest))
            heapify(heap)
        while heap:
            key, user, found = heap[0]
            if not self._is_open(desk, rights, found[1]) or self._place(found[1]) != found[2]:
                open_here = self._open_lines(desk, rights) if open_here is None else open_here
                first = self._first_of(user, open_here)
                if first is None:
                    heappop(heap)
                    continue
                found = first
            fresh = self._whole(desk, user, found)
            if fresh == key:
                return (key, found[1], found[2])
            heapreplace(heap, (fresh, user, found))
        return None

    def _whole(self, desk: Desk, user: str, first: Best) -> Key:
        return (*self._order.user(self._shares, desk.queue, user), *first[0])

    def _firsts_of_all(self, open_here: Sequence[Mapping[str, Line]]) -> dict[str, Best]:
        """Equivalent to _first_of for every user, in one pass over the lines."""
        found: dict[str, Best] = {}
        for lines in open_here:
            for user, line in lines.items():
                place = self._place(line)
                if place < len(line) and line not in self._closed_lines:
                    key = self._order.line(line, line.rank(place))
                    if user not in found or key < found[user][0]:
                        found[user] = (key, line, place)
        return found

    def _first_of(self, user: str, open_here: Sequence[Mapping[str, Line]]) -> Best | None:
        best: Best | None = None
        for lines in open_here:
            line = lines.get(user)
            if line is not None and line not in self._closed_lines:
                place = self._place(line)
                if place < len(line):
                    key = self._order.line(line, line.rank(place))
                    if best is None or key < best[0]:
                        best = (key, line, place)
        return best

    def _open_lines(self, desk: Desk, rights: int) -> list[Mapping[str, Line]]:
        """The lines at a desk that may still have a turn, by profile: user -> line."""
        headroom = self._headroom(desk.queue) if rights == OWNER else NEVER_MS
        here, limits, default = desk.by_demand, self._open, self._draft.state.settings.default_expected_ms
        insists = self._is_insisting(desk)
        found: list[Mapping[str, Line]] = []
        for demand in limits if len(limits) < len(here) and not insists else here:
            profiles = here.get(demand)
            if profiles is None or (rights == OWNER and _gpu_milli(demand) > headroom):
                continue
            shortest = NEVER_MS if insists else limits.get(demand, 0)
            if self._open_at:
                shortest = min(shortest, self._open_at.get((desk.priority, desk.queue, demand), NEVER_MS))
            if shortest > 0:
                found += [lines for profile, lines in profiles.items() if (profile.expected_ms or default) < shortest]
        return found

    def _is_open(self, desk: Desk, rights: int, line: Line) -> bool:
        demand = line.profile.demand
        if rights == OWNER and _gpu_milli(demand) > self._headroom(desk.queue):
            return False
        shortest = NEVER_MS if self._is_insisting(desk) else self._open.get(demand, 0)
        if self._open_at:
            shortest = min(shortest, self._open_at.get((desk.priority, desk.queue, demand), NEVER_MS))
        return self._expected(line) < shortest and line not in self._closed_lines

    def _headroom(self, queue: str) -> int:
        """How much more a queue may have within its own guarantee; 0 if it has none."""
        known = self._rooms.get(queue)
        if known is None:
            tree = self._draft.queues
            guarantee = tree.guarantee(queue, GPU_MILLI, self._draft.now_ms) or 0
            known = self._rooms[queue] = max(0, guarantee - tree.queues[queue].used.get(GPU_MILLI, 0))
        return known

    def _is_insisting(self, desk: Desk) -> bool:
        return self._may_insist(desk)

    def _expected(self, line: Line) -> int:
        return line.profile.expected_ms or self._draft.state.settings.default_expected_ms

    def _place(self, line: Line) -> int:
        """How far the line has moved on in this draft."""
        place, served, skipped = self._passed.get(line, 0), self._draft.served, self._skipped
        while place < len(line) and (line.gang(place) in served or line.gang(place) in skipped):
            place += 1
            self._passed[line] = place
        return place


class _Last:
    """Greater than everything."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True


_LAST = _Last()
