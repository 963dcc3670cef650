"""Who has had less than its share: dominant resource, decayed usage, and what is running charged at once.

A share is an integer: millionths of the cluster times milliseconds, per unit of weight. Smaller goes first. Knows
nothing of priorities, age or placement.
"""

from __future__ import annotations

from collections.abc import Mapping

from corral.core.cluster.resources import SHARE_DIMENSIONS
from corral.core.queues.usage import Usage
from corral.core.snapshot import Draft

_SCALE = 1_000_000
_NONE = (0,) * len(SHARE_DIMENSIONS)
_NOTHING: Mapping[str, int] = {}

#: (dimension, the past share in it, the divisor that turns an amount into a share)
Past = tuple[str, int, int]


class Shares:
    """Shares of queues and users in a draft. What the draft charges counts as soon as ``charged`` is called.

    Shares are remembered in between: they only grow while a draft is filled, as a walk in order requires; what an
    eviction gives back counts in the next plan.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tree = draft.queues
        self._charge = self._tree.entry_charge_ms * _SCALE
        self._totals = [(dimension, self._tree.total.get(dimension, 0)) for dimension in SHARE_DIMENSIONS]
        self._past: dict[str, list[Past]] = {}
        self._past_of_users: dict[tuple[str, str], list[Past]] = {}
        self._queues: dict[str, int] = {}
        self._users: dict[tuple[str, str], int] = {}
        self._charged: set[str] = set()  # queues

    def remember(self, queue: str) -> None:
        """Look now at the shares along a queue's path that nobody has asked for and that were not charged so far."""
        for name in self._tree.path(queue)[1:]:
            if name not in self._charged:
                self.queue(name)

    def charged(self, queue: str, user: str) -> None:
        """The draft charged something to this user of this queue."""
        for name in self._tree.path(queue):
            self._queues.pop(name, None)
            self._charged.add(name)
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
            past = self._past.get(name)
            if past is None:
                past = self._past[name] = self._weighed(record.usage, record.spec.weight)
            known = self._queues[name] = self._share(past, record.used)
        return known

    def user(self, queue: str, user: str) -> int:
        known = self._users.get((queue, user))
        if known is None:
            record = self._tree.queues[queue]
            past = self._past_of_users.get((queue, user))
            if past is None:
                past = self._past_of_users[queue, user] = self._weighed(record.user_usage.get(user), 1)
            known = self._users[queue, user] = self._share(past, record.user_used.get(user, _NOTHING))
        return known

    def _share(self, past: list[Past], used: Mapping[str, int]) -> int:
        """The largest over the dimensions: what was had, and what is in use as if it had been for a while."""
        charge, largest = self._charge, 0
        for dimension, had, divisor in past:
            share = had + used.get(dimension, 0) * charge // divisor
            if share > largest:
                largest = share
        return largest

    def _weighed(self, usage: Usage | None, weight: int) -> list[Past]:
        past = _NONE if usage is None else usage.at(self._draft.now_ms, self._tree.half_life_ms)
        return [
            (dimension, had * _SCALE // (total * weight), total * weight)
            for (dimension, total), had in zip(self._totals, past, strict=True)
            if total > 0
        ]
