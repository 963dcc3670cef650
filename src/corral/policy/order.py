"""Who is next: a total order over all who wait, walked lazily and kept right while the draft changes.

An order gives keys; the walk merges them. It looks only at lines that are still open: a demand that does not fit is
closed once for everybody, so a cycle costs what can happen, not what waits. Starts nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    """One pass over the backlog in order. Whoever walks says after each turn who need not have another one.

    Desks that may have others make room are treated one by one. All other desks are alike: what does not fit for one of
    them fits for none, so it is closed for all at once.
    """

    def __init__(
        self, draft: Draft, order: Order, first: Iterable[Gang] = (), may_insist: Callable[[Desk], bool] = lambda desk: False
    ) -> None:
        self._draft, self._order = draft, order
        self._shares = Shares(draft)
        self._backlog = draft.state.backlog
        self._first = list(first)[::-1]  # gangs that go before everyone else
        self._may_insist = may_insist
        self._passed: dict[Line, int] = {}
        self._skipped: set[str] = set()
        self._closed_lines: set[Line] = set()
        #: demand -> only runs shorter than this still have a turn, at desks that may not insist
        self._open: dict[Demand, int] = dict.fromkeys(self._backlog.demands, NEVER_MS)
        #: the same for single desks: (desk, demand) -> shorter than this
        self._open_at: dict[tuple[int, str, Demand], int] = {}
        self._heap: list[tuple[Key, tuple[int, str]]] = [
            (self._key(desk), at) for at, desk in self._backlog.desks.items()
        ]
        heapify(self._heap)

    def next(self) -> Turn | None:
        """The first gang in order that may still have a turn."""
        while self._first:
            gang = self._first.pop()
            if gang.id not in self._draft.served and gang.id not in self._skipped:
                desk = self._backlog.desks[gang.priority, gang.queue]
                return Turn(desk, self._backlog.line(gang), gang)
        while self._heap:
            key, at = self._heap[0]
            desk = self._backlog.desks[at]
            line = self._best_line(desk) if self._open or self._is_insisting(desk) else None
            if line is None:
                heappop(self._heap)
                continue
            fresh = self._key(desk, line)
            if fresh > key:
                heapreplace(self._heap, (fresh, at))
                continue
            return Turn(desk, line, self._draft.state.gangs[line.gang(self._place(line))])
        return None

    def skip(self, turn: Turn) -> None:
        """It has had its turn; who stands behind it may have one."""
        self._skipped.add(turn.gang.id)

    def close(self, turn: Turn, from_ms: int = 0) -> None:
        """It does not fit for a run of so long or longer: not at this desk, and not at any other that may not insist."""
        self.close_at_desk(turn, from_ms)
        if not self._is_insisting(turn.desk):
            self.close_demand(turn.gang.demand, from_ms)

    def close_demand(self, demand: Demand, from_ms: int = 0) -> None:
        if from_ms <= 0:
            self._open.pop(demand, None)
        elif demand in self._open:
            self._open[demand] = min(self._open[demand], from_ms)

    def close_at_desk(self, turn: Turn, from_ms: int = 0) -> None:
        """Nobody at this desk who wants this, for so long or longer, has another turn."""
        key = (turn.desk.priority, turn.desk.queue, turn.gang.demand)
        self._open_at[key] = min(self._open_at.get(key, NEVER_MS), from_ms)

    def close_line(self, turn: Turn) -> None:
        self._closed_lines.add(turn.line)

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
        for demand, shortest in self._demands_at(desk):
            for lines in desk.by_demand[demand].values():
                for line in lines.values():
                    place = self._place(line)
                    if place < len(line) and self._expected(line) < shortest and line not in self._closed_lines:
                        key = self._order.line(self._shares, line, line.rank(place))
                        if best is None or key < best[0]:
                            best = (key, line)
        return None if best is None else best[1]

    def _demands_at(self, desk: Desk) -> Iterator[tuple[Demand, int]]:
        """The demands that may still have a turn at a desk, and up to what length of run."""
        here, limits = desk.by_demand, self._open
        if self._is_insisting(desk):
            limits = dict.fromkeys(here, NEVER_MS)
        smaller = limits if len(limits) < len(here) else here
        for demand in smaller:
            if demand in here and demand in limits:
                shortest = limits[demand]
                if self._open_at:
                    shortest = min(shortest, self._open_at.get((desk.priority, desk.queue, demand), NEVER_MS))
                if shortest > 0:
                    yield demand, shortest

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
