"""Who goes before whom: keys for desks, for the users at a desk and for the lines of a user.

An order gives keys; the walk merges them. Knows shares, priorities, age and length; nothing of placement.
"""

from __future__ import annotations

from typing import Any, Protocol

from corral.core.model import Gang
from corral.core.queues.backlog import Backlog, Desk, Line
from corral.policy.fairness import Shares

Key = tuple[Any, ...]


class Order(Protocol):
    """How desks rank, users at a desk, and lines of a user. Keys may only grow while a draft is filled.

    ``below``: leave out so many of the outermost queues; those who are compared have them in common.
    """

    looks_inside: bool  # whether the key of a desk depends on who is first at it
    owners_first: bool  # whether what lies within a queue's guarantee goes before everything else

    def desk(self, shares: Shares, desk: Desk, first: Key, below: int) -> Key: ...

    def desk_at_least(self, desk: Desk) -> Key:
        """What the key of a desk certainly begins with; the less has to be looked at, the better."""
        ...

    def user(self, shares: Shares, queue: str, user: str) -> Key: ...

    def line(self, line: Line, rank: int) -> Key: ...

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        """The first few of all, first to last, where they are known without looking at anybody else."""
        ...


class ByArrival:
    """First come, first served, over all queues."""

    looks_inside = True
    owners_first = False

    def desk(self, shares: Shares, desk: Desk, first: Key, below: int) -> Key:
        return first

    def desk_at_least(self, desk: Desk) -> Key:
        return ()

    def user(self, shares: Shares, queue: str, user: str) -> Key:
        return ()

    def line(self, line: Line, rank: int) -> Key:
        return (rank,)

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        found = [gang for ages in backlog.ages.values() for gang in ages.oldest(most)]
        return found if len(backlog.ages) == 1 else sorted(found, key=lambda gang: gang.rank)[:most]


class ByPriority(ByArrival):
    def desk(self, shares: Shares, desk: Desk, first: Key, below: int) -> Key:
        return (-desk.priority, *first)

    def desk_at_least(self, desk: Desk) -> Key:
        return (-desk.priority,)

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        return backlog.ages[max(backlog.ages)].oldest(most) if backlog.ages else []


class ByLength(ByArrival):
    """Shortest expected run first. What states no length comes last."""

    def line(self, line: Line, rank: int) -> Key:
        expected = line.profile.expected_ms
        return (expected is None, expected or 0, rank)

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        return []


class ByShare:
    """The queue that has had least of its share, then the user who has, then age."""

    looks_inside = False
    owners_first = False

    def desk(self, shares: Shares, desk: Desk, first: Key, below: int) -> Key:
        return (shares.path(desk.queue, below), -desk.priority)

    def desk_at_least(self, desk: Desk) -> Key:
        return ()

    def user(self, shares: Shares, queue: str, user: str) -> Key:
        return (shares.user(queue, user), user)

    def line(self, line: Line, rank: int) -> Key:
        return (rank,)

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        return []


class ByPriorityAndShare(ByShare):
    """Owners within their guarantee first, since they could take it back from anyone; then priority; then share."""

    owners_first = True

    def desk(self, shares: Shares, desk: Desk, first: Key, below: int) -> Key:
        return (-desk.priority, shares.path(desk.queue, below))

    def desk_at_least(self, desk: Desk) -> Key:
        return (-desk.priority,)
