"""By which right a gang may preempt others, if any: each of them, and all together. The table of docs/decisions/0006,
and nothing else.

Knows queues, guarantees and priorities. Does not know placement or price.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property

from corral.core.cluster.resources import SHARE_DIMENSIONS
from corral.core.model import NEVER_MS, Cause, Gang, GangState
from corral.core.queues.terms import contested
from corral.core.snapshot import Draft

Group = tuple[str, int]  # gangs of one queue and priority


class Rights:
    """Rights within one draft, against all gangs that held seats when it began, by queue and priority; and against
    those that start on their claims in it (``on_claims``): they would be preempted as soon as they had started."""

    def __init__(self, draft: Draft, on_claims: Sequence[Gang] = ()) -> None:
        self._draft, self._tree = draft, draft.queues
        self.groups: Mapping[Group, Mapping[str, Gang]] = draft.state.held_by
        self._on_claims = frozenset([gang.id for gang in on_claims])
        if on_claims:
            groups = dict(self.groups)
            for gang in on_claims:
                group = (gang.queue, gang.priority)
                groups[group] = {**groups.get(group, {}), gang.id: gang}
            self.groups = groups
        self._sharing_time = {priority for _, priority in self.groups if draft.snapshot.shares_time(priority)}
        #: by queue, its groups, numbered in order
        self._numbered: dict[str, list[tuple[int, Group]]] = {}
        for at, group in enumerate(self.groups):
            self._numbered.setdefault(group[0], []).append((at, group))
        self._own_lowest: dict[str, int] = {}  # queue -> the lowest priority of its own gangs that may be preempted
        self._lowest: dict[str, int] = {}  # the same for its subtree
        self._lowest_borrowing: dict[str, int] = {}  # the same for gangs that borrow as seen from it
        self._along: dict[str, int] = {}  # the same for gangs that borrow as seen from it or any queue above it
        self._floor: dict[str, int] = {}  # queue -> gangs that wait there above this priority may preempt
        self._reclaims: dict[str, bool] = {}  # queue -> whether it may be below its guarantee while another borrows
        self._first: dict[str, set[str]] = {}  # queue -> the first gangs that got seats, within its guarantee
        #: queue -> whether it borrows: as of the last refresh, and as of the first query after it
        self._borrowed = self._borrows = _Borrowing(draft)
        #: priority -> groups of queues that borrow, as of the first query after the last refresh
        self._borrowers: dict[int, set[tuple[int, Group]]] = {}
        self._is_asked = False
        self.refresh()

    def of(self, gang: Gang, charge: Mapping[str, int]) -> Iterator[tuple[Cause, tuple[str, ...], Group]]:
        """(right, queues, group) for every group that a gang may preempt. The guarantees of ``queues`` protect the
        group: they are the part of its queue's path that is not on the gang's path; none for the gang's own queue."""
        tree, now = self._tree, self._draft.now_ms
        mine = tree.path(gang.queue)
        # from each depth of the path: whether every queue down to its end stays within its guarantee
        entitled = [True] * (len(mine) + 1)
        for depth in range(len(mine) - 1, 0, -1):
            entitled[depth] = entitled[depth + 1] and tree.is_within(mine[depth], charge, now)
        for _, (queue, priority) in self._within_reach(gang, any(entitled[1:-1])):
            theirs = tree.path(queue)
            shared = 0
            while shared < len(mine) and shared < len(theirs) and mine[shared] == theirs[shared]:
                shared += 1
            # a gang that waits in a queue above theirs has no guarantee against them
            is_entitled = shared < len(mine) and entitled[shared]
            is_borrowing = all(map(self._borrows.of, theirs[shared:]))
            right = self._right(gang, queue, priority, is_entitled, is_borrowing)
            if right is not None:
                yield right, theirs[shared:], (queue, priority)

    def _within_reach(self, gang: Gang, is_entitled: bool) -> list[tuple[int, Group]]:
        """All groups against which a gang may have a right, in order, with their numbers.

        The result is equivalent to all groups. A gang that is not entitled to reclaim may preempt only lower
        priorities, and its own priority where time is shared. Gangs of queues that do not borrow cannot be preempted,
        except in its own queue and the queues above it.
        """
        found: set[tuple[int, Group]] = set()
        may_share = gang.priority in self._sharing_time
        for priority, groups in self._look_at_borrowers().items():
            if is_entitled or priority < gang.priority or (may_share and priority == gang.priority):
                found |= groups
        for queue in self._tree.path(gang.queue):
            found.update(self._numbered.get(queue, ()))
        return sorted(found)

    def _look_at_borrowers(self) -> dict[int, set[tuple[int, Group]]]:
        """By priority, the groups of queues that borrow. Computed at the first query after a refresh."""
        if not self._is_asked:
            self._is_asked = True
            if self._borrows is self._borrowed:
                self._borrows = self._borrowed.twin()
                stale: Iterable[str] = self._numbered
                self._borrows.look_again()
            else:
                stale = self._borrows.look_again()
            for queue in stale:
                for each in self._numbered.get(queue, ()):
                    borrowers = self._borrowers.setdefault(each[1][1], set())
                    if self._borrows.of(queue):
                        borrowers.add(each)
                    else:
                        borrowers.discard(each)
        return self._borrowers

    def _right(self, gang: Gang, queue: str, priority: int, is_entitled: bool, is_borrowing: bool) -> Cause | None:
        is_lower = priority < gang.priority
        if queue == gang.queue:
            return Cause.PRIORITY if is_lower else self._to_time(gang, queue, priority)
        if not is_borrowing:
            return None
        if is_entitled:
            return Cause.RECLAIM
        return Cause.PRIORITY if is_lower else self._to_time(gang, queue, priority)

    def within_guarantee(self, queues: tuple[str, ...]) -> set[str]:
        """The gangs that are within the guarantees of these queues: those that got seats first, as many as each covers.

        A gang that only has a higher priority may preempt the others, not these. Otherwise it would take, whenever a
        gang of the queue starts, what the queue takes back when that gang ends.
        """
        return {gang for name in queues for gang in self._first_of(name)}

    def _first_of(self, name: str) -> set[str]:
        known = self._first.get(name)
        if known is None:
            known = self._first[name] = set()
            covers = {each: self._tree.guarantee(name, each, self._draft.now_ms) for each in self._tree.guaranteed}
            left = {dimension: amount for dimension, amount in covers.items() if amount}
            gangs = [each for group in self._groups_below.get(name, ()) for each in self.askable(group)] if left else []
            for gang in sorted(gangs, key=_turn):
                charge = dict(gang.charged)
                left = {dimension: amount - charge.get(dimension, 0) for dimension, amount in left.items()}
                shared = contested(charge)
                if shared and all(left.get(dimension, -1) >= 0 for dimension in shared):
                    known.add(gang.id)
        return known

    @cached_property
    def _groups_below(self) -> dict[str, list[Group]]:
        """By queue, the groups in it and below it."""
        found: dict[str, list[Group]] = {}
        for queue, groups in self._numbered.items():
            for name in self._tree.path(queue):
                found.setdefault(name, []).extend([group for _, group in groups])
        return found

    def may_exist(self, queue: str, priority: int) -> bool:
        """False if no gang may be preempted for this queue and priority, except equals that have had their turn. Cheap;
        True may be wrong."""
        return self._floor_of(queue) < priority or self._may_reclaim(queue)

    def _floor_of(self, queue: str) -> int:
        """Gangs that wait in a queue above this priority may preempt others."""
        floor = self._floor.get(queue)
        if floor is None:
            floor = self._floor[queue] = min(self._lowest[queue], self._borrowing_along(self._tree.path(queue)))
        return floor

    def _borrowing_along(self, path: tuple[str, ...]) -> int:
        """The lowest priority of gangs that borrow as seen from any queue of a path. Shared parts are computed once."""
        known = self._along.get(path[-1])
        if known is None:
            known = self._lowest_borrowing[path[-1]]
            if len(path) > 1:
                known = min(known, self._borrowing_along(path[:-1]))
            self._along[path[-1]] = known
        return known

    def _may_reclaim(self, queue: str) -> bool:
        known = self._reclaims.get(queue)
        if known is None:
            known = False
            if self.is_owed(queue):
                path = self._tree.path(queue)
                for parent, child in zip(path[-2::-1], path[:0:-1], strict=True):
                    if known or not self.is_owed(child):
                        break
                    known = self._lowest_borrowing[parent] < NEVER_MS
            self._reclaims[queue] = known
        return known

    def askable(self, group: Group) -> Iterator[Gang]:
        """The gangs of a group that hold seats and may be preempted: not leaving yet, and not about to move."""
        leaving, served = self._draft.leaving, self._draft.served
        for name, gang in self.groups[group].items():
            is_there = gang.state is GangState.RUNNING or gang.state is GangState.STARTING
            if (is_there and name not in leaving and name not in served) or name in self._on_claims:
                yield gang

    def is_owed(self, queue: str) -> bool:
        """Whether a queue is below its guarantee."""
        used = self._tree.queues[queue].used
        for dimension in self._tree.guaranteed:
            guarantee = self._tree.guarantee(queue, dimension, self._draft.now_ms)
            if guarantee is not None and used.get(dimension, 0) < guarantee:
                return True
        return False

    def depend_on_gang(self, gang: Gang) -> bool:
        """Whether rights depend on the gang itself: where equals yield to it."""
        return gang.priority in self._sharing_time

    def _to_time(self, gang: Gang, queue: str, priority: int) -> Cause | None:
        if priority != gang.priority or priority not in self._sharing_time:
            return None
        return Cause.TIME_SHARE if self._draft.state.queues.queues[queue].spec.time_share else None

    def refresh(self) -> None:
        """Update which queues borrow and which gangs may be preempted: fewer, after a preemption. Only queues that were
        charged since the last refresh, and the queues above them, are checked."""
        self._is_asked = False
        self._floor = {}
        self._along = {}
        self._reclaims = {}
        changed = self._borrowed.look_again()
        for name in changed:
            self._first.pop(name, None)
            groups = self._numbered.get(name, ())
            priorities = [group[1] for _, group in groups if next(self.askable(group), None) is not None]
            self._own_lowest[name] = min(priorities, default=NEVER_MS)
        for name in sorted(changed, key=self._depth, reverse=True):
            lowest = borrowing = self._own_lowest[name]
            for child in self._tree.queues[name].children:
                lowest = min(lowest, self._lowest[child])
                if self._lowest_borrowing[child] < borrowing and self._borrowed.of(child):
                    borrowing = self._lowest_borrowing[child]
            self._lowest[name], self._lowest_borrowing[name] = lowest, borrowing

    def _depth(self, queue: str) -> int:
        return len(self._tree.path(queue))


def _turn(gang: Gang) -> int:
    return gang.turn


class _Borrowing:
    """Whether queues have more than their guarantee, as of the last update."""

    def __init__(self, draft: Draft) -> None:
        self._tree, self._now_ms = draft.queues, draft.now_ms
        self._known: dict[str, bool] = {}
        self._place: int | None = None  # position in the list of charges

    def twin(self) -> _Borrowing:
        """A copy that is updated at other times."""
        twin = copy(self)
        twin._known = self._known.copy()
        return twin

    def look_again(self) -> set[str]:
        """Update what may have changed: all queues at first, then those that were charged and those above them."""
        charges = self._tree.charges
        if self._place is None:
            stale = set(self._tree.queues)
        else:
            stale = {name for queue in set(charges[self._place :]) for name in self._tree.path(queue)}
        self._place = len(charges)
        for name in stale:
            self._known[name] = self._borrows_anything(name)
        return stale

    def of(self, queue: str) -> bool:
        return self._known[queue]

    def _borrows_anything(self, name: str) -> bool:
        """Whether a queue has more than its guarantee: of GPUs, of a resource that some queue is guaranteed, or, if it
        uses none of these, of another shared resource."""
        used, is_idle = self._tree.queues[name].used, True
        for dimension in SHARE_DIMENSIONS:
            amount = used.get(dimension, 0)
            counts = is_idle or dimension in self._tree.guaranteed
            if counts and amount > (self._tree.guarantee(name, dimension, self._now_ms) or 0):
                return True
            is_idle = is_idle and not amount
        return False
