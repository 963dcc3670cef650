"""By what right one gang may ask another to leave, if by any. The table of docs/decisions/0006, and nothing else.

Knows queues, guarantees and priorities. Knows nothing of placement or price.
"""

from __future__ import annotations

from collections.abc import Mapping

from corral.core.cluster.resources import GPU_MILLI
from corral.core.model import NEVER_MS, Cause, Gang
from corral.core.queues.quota import contested
from corral.core.snapshot import Draft


class Rights:
    """Rights within one draft, against everyone who held seats when it began, by queue and priority."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._tree = draft, draft.queues
        self.groups = draft.state.held_by
        self._sharing_time = {
            priority for queue, priority in self.groups if draft.state.queues.queues[queue].spec.time_share
        }
        #: queue -> the lowest priority in its subtree, of all, and of those that borrow as seen from it
        self._lowest: dict[str, int] = {}
        self._lowest_borrowing: dict[str, int] = {}
        self._note_lowest()

    def against(self, gang: Gang, queue: str, priority: int, charge: Mapping[str, int]) -> Cause | None:
        """By what right a gang with this charge may ask gangs of a queue and priority to leave."""
        tree, now = self._tree, self._draft.now_ms
        is_lower = priority < gang.priority
        if queue == gang.queue:
            return Cause.PRIORITY if is_lower else self._to_time(gang, queue, priority)
        is_entitled = tree.is_entitled(gang.queue, queue, charge, now)
        if tree.is_borrowing(queue, gang.queue, contested(charge), now):
            if is_entitled:
                return Cause.RECLAIM
            return Cause.PRIORITY if is_lower else self._to_time(gang, queue, priority)
        return Cause.PRIORITY if is_lower and is_entitled else None

    def may_exist(self, queue: str, priority: int) -> bool:
        """False if nobody could be asked to leave for the sake of this queue and priority. Cheap, and may say yes in vain."""
        if priority in self._sharing_time or self._is_low((queue,), self._lowest, priority):
            return True
        path = self._tree.path(queue)
        if self._is_low(path, self._lowest_borrowing, priority):
            return True
        for parent, child in zip(path[-2::-1], path[:0:-1], strict=True):
            if not self.is_owed(child):
                return False
            if self._lowest_borrowing[parent] < NEVER_MS or self._lowest[parent] < priority:
                return True
        return False

    def is_owed(self, queue: str) -> bool:
        """Whether a queue has less than its guarantee."""
        guarantee = self._tree.guarantee(queue, GPU_MILLI, self._draft.now_ms)
        return guarantee is not None and self._tree.queues[queue].used.get(GPU_MILLI, 0) < guarantee

    def _to_time(self, gang: Gang, queue: str, priority: int) -> Cause | None:
        shares_time = self._draft.state.queues.queues[queue].spec.time_share > 0
        return Cause.TIME_SHARE if shares_time and priority == gang.priority else None

    def _is_low(self, queues: tuple[str, ...], lowest: Mapping[str, int], priority: int) -> bool:
        return any(lowest.get(name, NEVER_MS) < priority for name in queues)

    def _note_lowest(self) -> None:
        now = self._draft.now_ms
        borrows = {
            name: queue.used.get(GPU_MILLI, 0) > (self._tree.guarantee(name, GPU_MILLI, now) or 0)
            for name, queue in self._tree.queues.items()
        }
        self._lowest = dict.fromkeys(self._tree.queues, NEVER_MS)
        self._lowest_borrowing = dict.fromkeys(self._tree.queues, NEVER_MS)
        for queue, priority in self.groups:
            is_borrowing = True
            for name in reversed(self._tree.path(queue)):
                self._lowest[name] = min(self._lowest[name], priority)
                if is_borrowing:
                    self._lowest_borrowing[name] = min(self._lowest_borrowing[name], priority)
                is_borrowing = is_borrowing and borrows[name]
