"""Fair share: dominant resource, decayed usage, and running gangs charged at once.

A share is an integer: millionths of the cluster times milliseconds, per unit of weight. Smaller goes first. Does
not know priorities, age or placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import add

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

    Shares are cached: they only grow while a draft is filled, as a walk in order requires; what an eviction frees
    counts in the next plan.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._tree = draft.queues
        self._charge = self._tree.entry_charge_ms * _SCALE
        self._totals = [(dimension, self._tree.total.get(dimension, 0)) for dimension in SHARE_DIMENSIONS]
        self._past: dict[str, list[Past]] = {}
        self._past_of_users: dict[tuple[str, str], list[Past]] = {}
        self._queues: dict[str, int] = {}
        self._owns: dict[str, int] = {}
        self._users: dict[tuple[str, str], int] = {}
        self._charged: set[str] = set()  # queues

    def remember(self, queue: str) -> None:
        """Compute the shares along a queue's path that were neither read nor charged so far."""
        for name in self._tree.path(queue)[1:]:
            if name not in self._charged:
                self.queue(name)
        if queue not in self._charged:
            self.own(queue)

    def charged(self, queue: str, user: str) -> None:
        """The draft charged something to this user of this queue."""
        for name in self._tree.path(queue):
            self._queues.pop(name, None)
            self._charged.add(name)
        self._owns.pop(queue, None)
        self._users.pop((queue, user), None)

    def queue(self, name: str) -> int:
        known = self._queues.get(name)
        if known is None:
            record = self._tree.queues[name]
            past = self._past.get(name)
            if past is None:
                past = self._past[name] = self._weighed((record.usage,), record.spec.weight)
            known = self._queues[name] = self._share(past, record.used)
        return known

    def own(self, name: str) -> int:
        """The share of what a queue uses itself, without its children: it counts like a child of weight 1. For a
        queue without children, its own."""
        record = self._tree.queues[name]
        if not record.children:
            return self.queue(name)
        known = self._owns.get(name)
        if known is None:
            past = self._past.get(name + "/")
            if past is None:
                usages = record.user_usage.values()
                past = self._past[name + "/"] = self._weighed(usages, 1)
            used: dict[str, int] = {}
            for amounts in record.user_used.values():
                for dimension, amount in amounts.items():
                    used[dimension] = used.get(dimension, 0) + amount
            known = self._owns[name] = self._share(past, used)
        return known

    def user(self, queue: str, user: str) -> int:
        known = self._users.get((queue, user))
        if known is None:
            record = self._tree.queues[queue]
            past = self._past_of_users.get((queue, user))
            if past is None:
                usage = record.user_usage.get(user)
                past = self._past_of_users[queue, user] = self._weighed(() if usage is None else (usage,), 1)
            known = self._users[queue, user] = self._share(past, record.user_used.get(user, _NOTHING))
        return known

    def _share(self, past: list[Past], used: Mapping[str, int]) -> int:
        """The largest over the resources: past usage, plus current usage as if it had lasted for a while."""
        charge, largest = self._charge, 0
        for dimension, had, divisor in past:
            share = had + used.get(dimension, 0) * charge // divisor
            if share > largest:
                largest = share
        return largest

    def _weighed(self, usages: Iterable[Usage], weight: int) -> list[Past]:
        sums = _NONE
        for usage in usages:
            past = usage.at(self._draft.now_ms, self._tree.half_life_ms)
            sums = past if sums is _NONE else tuple(map(add, sums, past))
        return [
            (dimension, had * _SCALE // (total * weight), total * weight)
            for (dimension, total), had in zip(self._totals, sums, strict=True)
            if total > 0
        ]
