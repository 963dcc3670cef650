"""The line of one batching queue: priorities first, then users in turn if the queue says so, then order of arrival.

Knows order only. Every operation costs about the same however long the line is.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from corral.batching.items import BatchItem


class ItemLine:
    """Items that wait. Removed ones are skipped when their turn comes, so removing costs nothing."""

    def __init__(self, by_user: bool) -> None:
        self._by_user = by_user
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []  # of priorities, negated: the highest first
        self._ages: list[tuple[int, int, BatchItem]] = []
        self._deadlines: list[tuple[int, int, BatchItem]] = []
        self.count = 0
        self.cost = 0
        self.size_mib = 0

    def append(self, item: BatchItem) -> None:
        self._counted(item)
        self._level(item.priority).append(self._user(item), item)
        if item.deadline_us:
            heappush(self._deadlines, (item.deadline_us, item.number, item))

    def put_back(self, items: Iterable[BatchItem]) -> None:
        """Return items to the head of the line. ``items`` in the order in which they were taken."""
        for item in reversed(tuple(items)):
            self._counted(item)
            self._level(item.priority).appendleft(self._user(item), item)
            if item.deadline_us:
                heappush(self._deadlines, (item.deadline_us, item.number, item))

    def remove(self, item: BatchItem) -> None:
        item.waits = False
        self.count -= 1
        self.cost -= item.cost
        self.size_mib -= item.size_mib

    def head(self) -> BatchItem | None:
        """The item that would be taken next."""
        while self._order:
            found = self._levels[-self._order[0]].head()
            if found is not None:
                return found
            del self._levels[-self._order.pop(0)]
        return None

    def take(self, count_max: int, cost_max: int, size_max: int) -> list[BatchItem]:
        """Remove items from the head for as long as they stay within all three bounds; ``cost_max`` 0: no bound."""
        taken: list[BatchItem] = []
        cost = size = 0
        while len(taken) < count_max and (item := self.head()) is not None:
            cost += item.cost
            size += item.size_mib
            if size > size_max or (cost_max and cost > cost_max and taken):
                break
            self._levels[item.priority].popleft()
            self.remove(item)
            taken.append(item)
        return taken

    def oldest(self) -> BatchItem | None:
        """The item that arrived first of those that wait."""
        while self._ages and not self._ages[0][2].waits:
            heappop(self._ages)
        return self._ages[0][2] if self._ages else None

    def next_deadline(self) -> BatchItem | None:
        while self._deadlines and not self._deadlines[0][2].waits:
            heappop(self._deadlines)
        return self._deadlines[0][2] if self._deadlines else None

    def __iter__(self) -> Iterator[BatchItem]:
        """Everything that waits, in no useful order."""
        for level in self._levels.values():
            for line in level.users.values():
                yield from (item for item in line if item.waits)

    def _counted(self, item: BatchItem) -> None:
        item.waits = True
        self.count += 1
        self.cost += item.cost
        self.size_mib += item.size_mib
        heappush(self._ages, (item.arrived_us, item.number, item))

    def _user(self, item: BatchItem) -> str:
        return item.user if self._by_user else ""

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            insort(self._order, -priority)
        return level


class _Level:
    """Items of one priority: one line per user, and whose turn it is."""

    def __init__(self) -> None:
        self.users: dict[str, deque[BatchItem]] = {}
        self._turns: deque[str] = deque()

    def append(self, user: str, item: BatchItem) -> None:
        if user not in self.users:
            self.users[user] = deque()
            self._turns.append(user)
        self.users[user].append(item)

    def appendleft(self, user: str, item: BatchItem) -> None:
        if user not in self.users:
            self.users[user] = deque()
            self._turns.appendleft(user)
        self.users[user].appendleft(item)

    def head(self) -> BatchItem | None:
        while self._turns:
            line = self.users[self._turns[0]]
            while line and not line[0].waits:
                line.popleft()
            if line:
                return line[0]
            del self.users[self._turns.popleft()]
        return None

    def popleft(self) -> None:
        """Remove what `head` has returned; it is the next user's turn."""
        self.users[self._turns[0]].popleft()
        self._turns.rotate(-1)
