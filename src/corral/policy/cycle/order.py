"""The order of waiting gangs: keys for queues, for priorities of a queue, for their users and for a user's entries.

An order gives keys; the walk merges them. Knows shares, priorities, age and length, not placement.
"""

from __future__ import annotations

from typing import Any, Protocol

from corral.core.model import Gang
from corral.core.queues.backlog import Backlog, BacklogEntry, Bucket
from corral.core.snapshot import Snapshot
from corral.policy.cycle.fairness import Shares
from corral.policy.index import index_of

Key = tuple[Any, ...]


class Order(Protocol):
    """Ranks queues among their siblings, priorities of a queue, users of a priority, and entries of a user.

    ``first`` is the key of the gang that would be next there, for orders that depend on it.
    """

    looks_inside: bool  # whether it depends on the first gang
    owners_first: bool  # whether gangs within a queue's guarantee go before all others

    def queue(self, priority: int, share: int, name: str, first: Key) -> Key:
        """A queue among its siblings, with the first gang it has to offer, which has this priority."""
        ...

    def at_least(self, priority: int) -> Key:
        """The beginning of the key of a queue that has no gang of a higher priority."""
        ...

    def bucket(self, bucket: Bucket, first: Key) -> Key:
        """A priority among those of its queue."""
        ...

    def user(self, shares: Shares, queue: str, user: str) -> Key: ...

    def entry(self, snapshot: Snapshot, entry: BacklogEntry, place: int) -> Key:
        """An entry among those of its user, with the gang at this position."""
        ...

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        """The first few gangs in order, if they are known without examining others."""
        ...


class ByArrival:
    """First come, first served, over all queues."""

    looks_inside = True
    owners_first = False

    def queue(self, priority: int, share: int, name: str, first: Key) -> Key:
        return first

    def at_least(self, priority: int) -> Key:
        return ()

    def bucket(self, bucket: Bucket, first: Key) -> Key:
        return first

    def user(self, shares: Shares, queue: str, user: str) -> Key:
        return ()

    def entry(self, snapshot: Snapshot, entry: BacklogEntry, place: int) -> Key:
        return (entry.rank(place),)

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        found = [gang for ages in backlog.ages.values() for gang in ages.oldest(most)]
        return found if len(backlog.ages) == 1 else sorted(found, key=lambda gang: gang.rank)[:most]


class ByPriority(ByArrival):
    def queue(self, priority: int, share: int, name: str, first: Key) -> Key:
        return (-priority, *first)

    def at_least(self, priority: int) -> Key:
        return (-priority,)

    def bucket(self, bucket: Bucket, first: Key) -> Key:
        return (-bucket.priority, *first)

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        return backlog.ages[max(backlog.ages)].oldest(most) if backlog.ages else []


class ByLength(ByArrival):
    """Shortest expected run first. Gangs without an estimate come last."""

    def entry(self, snapshot: Snapshot, entry: BacklogEntry, place: int) -> Key:
        expected = entry.profile.expected_ms
        return (expected is None, expected or 0, entry.rank(place))

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        return []


class ByShare:
    """The queue that has had least of its share, then the user who has, then age."""

    looks_inside = False
    owners_first = False

    def queue(self, priority: int, share: int, name: str, first: Key) -> Key:
        return (share, name)

    def at_least(self, priority: int) -> Key:
        return ()

    def bucket(self, bucket: Bucket, first: Key) -> Key:
        return (-bucket.priority,)

    def user(self, shares: Shares, queue: str, user: str) -> Key:
        return (shares.user(queue, user), user)

    def entry(self, snapshot: Snapshot, entry: BacklogEntry, place: int) -> Key:
        return (entry.rank(place),)

    def heads(self, backlog: Backlog, most: int) -> list[Gang]:
        return []


class ByPriorityAndShare(ByShare):
    """Gangs within their guarantee first, since they could reclaim it from any queue; then priority; then share, of the
    queue and of the user; then, where gangs yield to each other, the index: the least GPU time until one like it
    ends; then age."""

    owners_first = True

    def queue(self, priority: int, share: int, name: str, first: Key) -> Key:
        return (-priority, share, name)

    def at_least(self, priority: int) -> Key:
        return (-priority,)

    def entry(self, snapshot: Snapshot, entry: BacklogEntry, place: int) -> Key:
        index = 0
        if snapshot.shares_time(entry.priority):
            index = index_of(snapshot, snapshot.state.gangs[entry.gang(place)]) or 0
        return (index, entry.rank(place))
