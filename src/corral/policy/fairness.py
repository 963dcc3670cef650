"""Who has had less than its share: dominant resource, decayed usage, and what is running charged at once.

A share is an integer: millionths of the cluster times milliseconds, per unit of weight. Smaller goes first. Knows
nothing of priorities, age or placement.
"""

from __future__ import annotations

from corral.core.cluster.resources import SHARE_DIMENSIONS
from corral.core.queues.usage import Usage
from corral.core.snapshot import Draft

_SCALE = 1_000_000
_NONE = (0,) * len(SHARE_DIMENSIONS)


class Shares:
    """Shares of queues and users in a draft. What the draft charges counts as soon as ``charged`` is called.

    Shares are remembered in between: they only grow while a draft is filled, as a walk in order requires; what an
    eviction
    gives back counts in the next plan.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tree = draft.queues
        self._past: dict[tuple[str, str | None], list[tuple[str, int, int]]] = {}
        self._queues: dict[str, int] = {}
        self._users: dict[tuple[str, str], int] = {}

    def charged(self, queue: str, user: str) -> None:
        """The draft charged something to this user of this queue."""
        for name in self._tree.path(queue):
            self._queues.pop(name, None)
        self._users.pop((queue, user), None)

    def path(self, queue: str, below: int = 0) -> tuple[tuple[int, str], ...]:
        """The shares along a queue's path: comparing two of these compares the queues where their paths part.

        ``below``: without so many of the outermost queues.
        """
        return tuple([(self.queue(name), name) for name in self._tree.path(queue)[1 + below :]])

    def queue(self, name: str) -> int:
        known = self._queues.get(name)
        if known is None:
            record = self._tree.queues[name]
            past = self._past.get((name, None))
            if past is None:
                past = self._past[name, None] = self._weighed(record.usage, record.spec.weight)
            used, charge = record.used, self._tree.entry_charge_ms
            known = 0
            for dimension, had, weight in past:
                share = had + used.get(dimension, 0) * charge * _SCALE // weight
                known = max(known, share)
            self._queues[name] = known
        return known

    def user(self, queue: str, user: str) -> int:
        known = self._users.get((queue, user))
        if known is None:
            record = self._tree.queues[queue]
            past = self._past.get((queue, user))
            if past is None:
                past = self._past[queue, user] = self._weighed(record.user_usage.get(user), 1)
            used, charge = record.user_used, self._tree.entry_charge_ms
            known = 0
            for dimension, had, weight in past:
                share = had + used.get((user, dimension), 0) * charge * _SCALE // weight
                known = max(known, share)
            self._users[queue, user] = known
        return known

    def _weighed(self, usage: Usage | None, weight: int) -> list[tuple[str, int, int]]:
        """Per dimension: the past share, and the divisor that turns an amount into a share."""
        past = _NONE if usage is None else usage.at(self._draft.now_ms, self._tree.half_life_ms)
        total = self._tree.total
        return [
            (dimension, had * _SCALE // (total[dimension] * weight), total[dimension] * weight)
            for dimension, had in zip(SHARE_DIMENSIONS, past, strict=True)
            if total.get(dimension, 0) > 0
        ]
