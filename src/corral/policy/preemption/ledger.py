"""What queues lose for one gang, and what they may lose at most. Knows guarantees; does not know placement or price.

An owner may reclaim from a queue while it has more than its guarantee: without all chosen gangs except the largest, the
queue must still be above it, so the order of the gangs does not matter. A borrower that only has a higher priority
leaves every queue at least its guarantee; otherwise the two would preempt each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corral.core.queues.terms import contested
from corral.core.snapshot import Draft
from corral.policy.preemption.vacancy import Candidate

Key = tuple[str, str]  # a queue, and a shared resource that it is guaranteed


class Ledger:
    """Of all guarantees that protect candidates from one gang with this charge."""

    def __init__(self, draft: Draft, queue: str, charge: Mapping[str, int]) -> None:
        self._tree = draft.queues
        self._state = draft.state
        self._now_ms = draft.now_ms
        self._queue = queue
        self._wanted = contested(charge)
        self._above: dict[Key, int] = {}  # what a queue has above its guarantee
        self._below: dict[str, tuple[str, ...]] = {}
        self._losses: dict[int, tuple[Candidate, dict[Key, int]]] = {}
        self._reclaimed: set[Key] = set()

    def losses(self, candidate: Candidate) -> Mapping[Key, int]:
        """What a candidate costs guarantees: GPUs if it has GPUs, else CPUs and memory; and what the gang itself is
        short of. What is borrowed beside it does not count: the right to GPUs is a right to GPUs."""
        known = self._losses.get(id(candidate))
        if known is None:
            known = self._losses[id(candidate)] = (candidate, self._losses_of(candidate))
        return known[1]

    def _losses_of(self, candidate: Candidate) -> dict[Key, int]:
        found: dict[Key, int] = {}
        if candidate.may_go_below or not self._tree.guaranteed:
            return found
        charge = dict(candidate.uncharged(self._state))
        counted = {*contested(charge), *self._wanted}
        for dimension in self._tree.guaranteed:
            if dimension in counted and charge.get(dimension):
                for queue in self._protected(candidate.gang.queue):
                    if self._above_of((queue, dimension)) is not None:
                        found[queue, dimension] = charge[dimension]
                        if candidate.is_reclaimed:
                            self._reclaimed.add((queue, dimension))
        return found

    def _protected(self, queue: str) -> tuple[str, ...]:
        found = self._below.get(queue)
        if found is None:
            found = self._below[queue] = self._tree.below(queue, self._queue)
        return found

    def _above_of(self, key: Key) -> int | None:
        """None: nothing is guaranteed, so all of it may be lost."""
        queue, dimension = key
        if key not in self._above:
            guarantee = self._tree.guarantee(queue, dimension, self._now_ms)
            if not guarantee:
                return None
            self._above[key] = self._tree.queues[queue].used.get(dimension, 0) - guarantee
        return self._above[key]

    def most(self, key: Key, largest: int) -> int:
        """The most that may be lost by victims of which the largest loses this much."""
        return self._above[key] + (largest - 1 if key in self._reclaimed else 0)

    def is_legal(self, chosen: Iterable[Candidate]) -> bool:
        return LossTally(self).add(chosen)


class LossTally:
    """What queues lose as candidates are chosen one after another."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lost: dict[Key, tuple[int, int]] = {}  # sum and maximum

    def add(self, candidates: Iterable[Candidate]) -> bool:
        """Whether all of these may be preempted as well. If not, none is added."""
        after: dict[Key, tuple[int, int]] = {}
        for candidate in candidates:
            for key, loss in self._ledger.losses(candidate).items():
                total, largest = after.get(key) or self._lost.get(key, (0, 0))
                after[key] = total, largest = total + loss, max(largest, loss)
                if total > self._ledger.most(key, largest):
                    return False
        self._lost.update(after)
        return True
