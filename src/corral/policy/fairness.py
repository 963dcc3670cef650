"""Who has had less than its share: dominant resource, decayed usage, and what is running charged at once.

A share is an integer: millionths of the cluster times milliseconds, per unit of weight. Smaller goes first. Knows
nothing of priorities, age or placement.
"""

from __future__ import annotations

from corral.core.cluster.resources import SHARE_DIMENSIONS
from corral.core.queues.usage import Usage
from corral.core.snapshot import Draft

_SCALE = 1_000_000


class Shares:
    """Shares of queues and users in a draft. Past usage is looked up once; what the draft charges counts at once."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tree = draft.queues
        self._past: dict[str, tuple[tuple[str, int, int], ...]] = {}
        self._user_past: dict[tuple[str, str], tuple[tuple[str, int, int], ...]] = {}

    def path(self, queue: str) -> tuple[tuple[int, str], ...]:
        """The shares along a queue's path: comparing two of these compares the queues where their paths part."""
        return tuple((self.queue(name), name) for name in self._tree.path(queue)[1:])

    def queue(self, name: str) -> int:
        past = self._past.get(name)
        record = self._tree.queues[name]
        if past is None:
            past = self._past[name] = self._weighed(record.usage, record.spec.weight)
        used, charge = record.used, self._tree.entry_charge_ms
        return max((had + used.get(d, 0) * charge * _SCALE // weight for d, had, weight in past), default=0)

    def user(self, queue: str, user: str) -> int:
        past = self._user_past.get((queue, user))
        record = self._tree.queues[queue]
        if past is None:
            past = self._user_past[queue, user] = self._weighed(record.user_usage.get(user, {}), 1)
        used, charge = record.user_used, self._tree.entry_charge_ms
        return max((had + used.get((user, d), 0) * charge * _SCALE // weight for d, had, weight in past), default=0)

    def _weighed(self, usage: dict[str, Usage], weight: int) -> tuple[tuple[str, int, int], ...]:
        """Per dimension: the past share, and the divisor that turns an amount into a share."""
        found = []
        for dimension in SHARE_DIMENSIONS:
            total = self._tree.total.get(dimension, 0) * weight
            if total > 0:
                had = usage.get(dimension)
                past = had.at(self._draft.now_ms, self._tree.half_life_ms) if had is not None else 0
                found.append((dimension, past * _SCALE // total, total))
        return tuple(found)
