"""By what right one gang may ask another to leave, if by any. The table of docs/decisions/0006, and nothing else.

Knows queues, guarantees and priorities. Knows nothing of placement or price.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corral.core.cluster.resources import GPU_MILLI, SHARE_DIMENSIONS
from corral.core.model import NEVER_MS, Cause, Gang, GangState
from corral.core.snapshot import Draft

Group = tuple[str, int]  # gangs of one queue and priority


class Rights:
    """Rights within one draft, against everyone who held seats when it began, by queue and priority."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._tree = draft, draft.queues
        self.groups = draft.state.held_by
        self._sharing_time = {
            priority for queue, priority in self.groups if draft.state.queues.queues[queue].spec.time_share
        }
        #: queue -> the lowest priority in its subtree, of those that borrow as seen from it
        self._lowest_borrowing: dict[str, int] = {}
        self._floor: dict[str, int] = {}  # queue -> whoever waits there above this priority may ask somebody to leave
        self._reclaims: dict[str, bool] = {}  # queue -> whether it may be owed something that somebody borrows
        self.refresh()

    def of(self, gang: Gang, charge: Mapping[str, int]) -> Iterator[tuple[Cause, bool, Group]]:
        """(right, whether their queue may fall below its guarantee, group) for all whom a gang may ask to leave."""
        tree, now = self._tree, self._draft.now_ms
        mine = tree.path(gang.queue)
        # from each depth of the path on: does the queue stay within its guarantee all the way down
        entitled = [True] * (len(mine) + 1)
        for depth in range(len(mine) - 1, 0, -1):
            entitled[depth] = entitled[depth + 1] and tree.is_within(mine[depth], charge, now)
        for queue, priority in self.groups:
            theirs = tree.path(queue)
            shared = 0
            while shared < len(mine) and shared < len(theirs) and mine[shared] == theirs[shared]:
                shared += 1
            # a gang that waits in a queue above theirs has no guarantee of its own there
            is_entitled = shared < len(mine) and entitled[shared]
            is_borrowing = self._borrows_from(queue)[shared]
            right = self._right(gang, queue, priority, is_entitled, is_borrowing)
            if right is not None:
                yield right, queue == gang.queue, (queue, priority)

    def _right(self, gang: Gang, queue: str, priority: int, is_entitled: bool, is_borrowing: bool) -> Cause | None:
        is_lower = priority < gang.priority
        if queue == gang.queue:
            return Cause.PRIORITY if is_lower else self._to_time(gang, queue, priority)
        if not is_borrowing:
            return None
        if is_entitled:
            return Cause.RECLAIM
        return Cause.PRIORITY if is_lower else self._to_time(gang, queue, priority)

    def may_exist(self, queue: str, priority: int) -> bool:
        """False if nobody could be asked to leave for this queue and priority. Cheap, and may say yes in vain."""
        return priority in self._sharing_time or self._floor[queue] < priority or self._may_reclaim(queue)

    def _may_reclaim(self, queue: str) -> bool:
        known = self._reclaims.get(queue)
        if known is None:
            known, path = False, self._tree.path(queue)
            for parent, child in zip(path[-2::-1], path[:0:-1], strict=True):
                if known or not self.is_owed(child):
                    break
                known = self._lowest_borrowing[parent] < NEVER_MS
            self._reclaims[queue] = known
        return known

    def askable(self, group: Group) -> Iterator[Gang]:
        """Those who hold seats and could be told to leave: they are not leaving yet, and not about to move."""
        leaving, served = self._draft.leaving, self._draft.served
        for name, gang in self.groups[group].items():
            is_there = gang.state is GangState.RUNNING or gang.state is GangState.STARTING
            if is_there and name not in leaving and name not in served:
                yield gang

    def is_owed(self, queue: str) -> bool:
        """Whether a queue has less than its guarantee."""
        guarantee = self._tree.guarantee(queue, GPU_MILLI, self._draft.now_ms)
        return guarantee is not None and self._tree.queues[queue].used.get(GPU_MILLI, 0) < guarantee

    def _borrows_from(self, queue: str) -> list[bool]:
        """For each depth of a queue's path: does it borrow from there on all the way down."""
        known = self._borrows.get(queue)
        if known is None:
            path = self._tree.path(queue)
            known = [True] * (len(path) + 1)
            for depth in range(len(path) - 1, -1, -1):
                known[depth] = known[depth + 1] and self._borrows_anything(path[depth])
            self._borrows[queue] = known
        return known

    def _borrows_anything(self, name: str) -> bool:
        """Whether a queue has more than its guarantee: of GPUs, or, if it has none of these, of anything shared."""
        used, now = self._tree.queues[name].used, self._draft.now_ms
        for dimension in SHARE_DIMENSIONS:
            if used.get(dimension, 0) > (self._tree.guarantee(name, dimension, now) or 0):
                return True
            if used.get(dimension):
                return False
        return False

    def _to_time(self, gang: Gang, queue: str, priority: int) -> Cause | None:
        shares_time = self._draft.state.queues.queues[queue].spec.time_share > 0
        return Cause.TIME_SHARE if shares_time and priority == gang.priority else None

    def refresh(self) -> None:
        """Look again at who borrows and who could be asked: after somebody was told to leave, there are fewer."""
        borrows: dict[str, bool] = {}
        lowest = dict.fromkeys(self._tree.queues, NEVER_MS)  # of all in a subtree
        borrowing = self._lowest_borrowing = dict.fromkeys(self._tree.queues, NEVER_MS)
        self._borrows: dict[str, list[bool]] = {}
        self._reclaims = {}
        for queue, priority in self.groups:
            if next(self.askable((queue, priority)), None) is None:
                continue
            is_borrowing = True
            for name in reversed(self._tree.path(queue)):
                if priority < lowest[name]:
                    lowest[name] = priority
                if is_borrowing:
                    if priority < borrowing[name]:
                        borrowing[name] = priority
                    if name not in borrows:
                        borrows[name] = self._borrows_anything(name)
                    is_borrowing = borrows[name]
        self._floor = {
            name: min(lowest[name], *[borrowing[each] for each in self._tree.path(name)]) for name in self._tree.queues
        }
