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
    """Shares of queues and users in a draft. What the draft charges counts as soon as ``charged`` is called.

    Shares are remembered in between: they only grow while a draft is filled, as a walk in order requires; what an
    eviction
    gives back counts in the next plan.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tree = draft.queues
        self._past: dict[tuple[str, str | None], tuple[tuple[str, int, int], ...]] = {}
        self._paths: dict[str, dict[str, tuple[tuple[int, str], ...]]] = {}  # by the outermost queue of the path
        self._queues: dict[str, int] = {}
        self._users: dict[tuple[str, str], int] = {}

    def charged(self, queue: str, user: str) -> None:
        """The draft charged something to this user of this queue."""
        for name in self._tree.path(queue):
            self._queues.pop(name, None)
        self._users.pop((queue, user), None)
        self._paths.pop(self._tree.path(queue)[1], None)

    def path(self, queue: str) -> tuple[tuple[int, str], ...]:
        """The shares along a queue's path: comparing two of these compares the queues where their paths part."""
        names = self._tree.path(queue)[1:]
        family = self._paths.setdefault(names[0], {})
        known = family.get(queue)
        if known is None:
            known = family[queue] = tuple((self.queue(name), name) for name in names)
        return known

    def queue(self, name: str) -> int:
        known = self._queues.get(name)
        if known is None:
            record = self._tree.queues[name]
            past = self._past.get((name, None))
            if past is None:
                past = self._past[name, None] = self._weighed(record.usage, record.spec.weight)
            used, charge = record.used, self._tree.entry_charge_ms
            known = max((had + used.get(d, 0) * charge * _SCALE // weight for d, had, weight in past), default=0)
            self._queues[name] = known
        return known

    def user(self, queue: str, user: str) -> int:
        known = self._users.get((queue, user))
        if known is None:
            record = self._tree.queues[queue]
            past = self._past.get((queue, user))
            if past is None:
                past = self._past[queue, user] = self._weighed(record.user_usage.get(user, {}), 1)
            used, charge = record.user_used, self._tree.entry_charge_ms
            known = max(
                (had + used.get((user, d), 0) * charge * _SCALE // weight for d, had, weight in past),
                default=0,
            )
            self._users[queue, user] = known
        return known

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
