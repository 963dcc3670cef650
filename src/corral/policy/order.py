"""Who is next: a total order over all who wait, walked lazily and kept right while the draft changes.

An order gives keys; the walk merges them. It looks only at lines that are still open: a demand that does not fit is
closed once for everybody, so a cycle costs what can happen, not what waits. Starts nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace
from typing import Any, Protocol

from corral.core.cluster.resources import Demand
from corral.core.model import NEVER_MS, Gang
from corral.core.queues.backlog import Desk, Line
from corral.core.snapshot import Draft
from corral.policy.fairness import Shares

Key = tuple[Any, ...]


class Order(Protocol):
    """``desk`` ranks desks against each other and may only grow while a draft is filled; ``line`` ranks within a desk."""

    looks_inside: bool  # whether the key of a desk depends on who is first at it

    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key: ...

    def line(self, shares: Shares, line: Line, rank: int) -> Key: ...


class ByArrival:
    """First come, first served, over all queues."""

    looks_inside = True

    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return first

    def line(self, shares: Shares, line: Line, rank: int) -> Key:
        return (rank,)


class ByPriority(ByArrival):
    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return (-desk.priority, *first)


class ByLength(ByArrival):
    """Shortest expected run first. What states no length comes last."""

    def line(self, shares: Shares, line: Line, rank: int) -> Key:
        expected = line.profile.expected_ms
        return (expected is None, expected or 0, rank)


class ByShare:
    """The queue that has had least of its share, then the user who has, then age."""

    looks_inside = False

    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return (shares.path(desk.queue), -desk.priority)

    def line(self, shares: Shares, line: Line, rank: int) -> Key:
        return (shares.user(line.queue, line.user), line.user, rank)


class ByPriorityAndShare(ByShare):
    def desk(self, shares: Shares, desk: Desk, first: Key) -> Key:
        return (-desk.priority, shares.path(desk.queue))


class Turn:
    """Whose turn it is: a line, and the gang that is first in it."""

    __slots__ = ("desk", "gang", "line")

    def __init__(self, desk: Desk, line: Line, gang: Gang) -> None:
        self.desk, self.line, self.gang = desk, line, gang


class Walk:
    """One pass over the backlog in order. Whoever walks says after each turn whether to pass the gang or close a line."""

    def __init__(
        self, draft: Draft, order: Order, first: Iterable[Gang] = (), may_insist: Callable[[Desk], bool] = lambda desk: False
    ) -> None:
        self._draft, self._order = draft, order
        self._may_insist = may_insist  # whether a desk may have others make room, so that "full" is not the last word
        self._insists: dict[tuple[str, int], bool] = {}
        self._full: set[Demand] = set()
        self._shares = Shares(draft)
        self._backlog = draft.state.backlog
        self._first = list(first)[::-1]  # gangs that go before everyone else
        self._passed: dict[Line, int] = {}
        self._skipped: set[str] = set()
        self._closed: set[Line] = set()
        self._closed_at: set[tuple[str, int, Demand]] = set()
        #: demand -> only runs shorter than this still have a turn
        self.open: dict[Demand, int] = dict.fromkeys(self._backlog.demands, NEVER_MS)
        self._heap: list[tuple[Key, tuple[int, str]]] = [
            (self._key(desk), at) for at, desk in self._backlog.desks.items()
        ]
        heapify(self._heap)

    def next(self) -> Turn | None:
        """The first gang in order whose line is still open."""
        while self._first:
            gang = self._first.pop()
            if gang.demand in self.open and gang.id not in self._draft.served and gang.id not in self._skipped:
                desk = self._backlog.desks[gang.priority, gang.queue]
                return Turn(desk, self._backlog.line(gang), gang)
        while self._heap and self.open:
            key, at = self._heap[0]
            desk = self._backlog.desks[at]
            line = self._best_line(desk)
            if line is None:
                heappop(self._heap)
                continue
            fresh = self._key(desk, line)
            if fresh > key:
                heapreplace(self._heap, (fresh, at))
                continue
            place = self._place(line)
            return Turn(desk, line, self._draft.state.gangs[line.gang(place)])
        return None

    def skip(self, gang: Gang) -> None:
        """It has had its turn; who stands behind it may have one."""
        self._skipped.add(gang.id)

    def close_demand(self, demand: Demand, from_ms: int = 0) -> None:
        """Nobody who wants this, for so long or longer, has a turn any more."""
        if from_ms <= 0:
            self.open.pop(demand, None)
        elif demand in self.open:
            self.open[demand] = min(self.open[demand], from_ms)

    def close_as_full(self, demand: Demand) -> None:
        """It does not fit: only desks that may have others make room still have a turn."""
        self._full.add(demand)

    def close_at_desk(self, turn: Turn) -> None:
        """The queue may not have it: nobody at this desk who wants this has a turn any more."""
        self._closed_at.add((turn.desk.queue, turn.desk.priority, turn.gang.demand))

    def close_line(self, turn: Turn) -> None:
        self._closed.add(turn.line)

    def _key(self, desk: Desk, line: Line | None = None) -> Key:
        first: Key = ()
        if self._order.looks_inside:
            line = line or self._best_line(desk)
            if line is None:
                return (_LAST,)
            first = self._order.line(self._shares, line, line.rank(self._place(line)))
        return (*self._order.desk(self._shares, desk, first), desk.queue)

    def _best_line(self, desk: Desk) -> Line | None:
        best: tuple[Key, Line] | None = None
        for demand in self._open_at(desk):
            if self._closed_at and (desk.queue, desk.priority, demand) in self._closed_at:
                continue
            shortest = self.open[demand]
            for lines in desk.by_demand[demand].values():
                for line in lines.values():
                    place = self._place(line)
                    if place < len(line) and line not in self._closed and self._expected(line) < shortest:
                        key = self._order.line(self._shares, line, line.rank(place))
                        if best is None or key < best[0]:
                            best = (key, line)
        return None if best is None else best[1]

    def _open_at(self, desk: Desk) -> Iterable[Demand]:
        if len(self.open) < len(desk.by_demand):
            found = [demand for demand in self.open if demand in desk.by_demand]
        else:
            found = [demand for demand in desk.by_demand if demand in self.open]
        if self._full and not self._insisting(desk):
            return [demand for demand in found if demand not in self._full]
        return found

    def _insisting(self, desk: Desk) -> bool:
        key = (desk.queue, desk.priority)
        if key not in self._insists:
            self._insists[key] = self._may_insist(desk)
        return self._insists[key]

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
