"""Which overdue gang goes before its turn: a bounded right.

Of the gangs of one priority that compete for the same types of nodes, the one that has waited longest goes first once
it has waited longer than ``patience``. A gang that is blocked by quota leaves the right to the next. Its usage is
charged to its queue as usual, and all gangs that go before their turn together use no more than a small part of those
nodes over time: so shares, weights and priorities apply even if all gangs are overdue. See docs/decisions/0023. Starts
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from corral.core.cluster.resources import GPU_MILLI, SHARE_DIMENSIONS, Demand
from corral.core.model import Gang
from corral.core.queues.backlog import BacklogEntry
from corral.core.snapshot import Draft
from corral.policy.backfill.pools import Pool, Pools
from corral.policy.cycle.closures import Closures
from corral.policy.cycle.walk import Walk
from corral.policy.quota.limits import yields_to

#: All gangs that go before their turn together use, over time, one part in this many of the nodes they compete for.
PARTS = 100

Waiting = tuple[int, int, Gang, BacklogEntry | None]  # since when, rank

FEW = 32  # gangs of a priority that have waited longest are checked first; if quota blocks all of them, every entry is


class Patience:
    """Which gangs go before their turn in one draft. ``patience_ms`` None: none."""

    def __init__(self, draft: Draft, patience_ms: int | None, pools: Pools) -> None:
        self._draft = draft
        self._state = draft.state
        self._pools = pools
        self._since_ms = None if patience_ms is None else draft.now_ms - patience_ms
        self._waiting: dict[int, list[Waiting]] = {}  # priority -> a heap of the gangs that have waited longest
        self._unseen: set[int] = set()  # priorities of which the heap does not have all gangs
        self._over: set[tuple[int, Pool]] = set()  # of these no other gang goes before its turn

    def before(self, walk: Walk, closures: Closures, first: Gang) -> Gang | None:
        """The gang that goes before this one, if there is one. Each is offered once."""
        if self._since_ms is None:
            return None
        priority = first.priority
        waiting = self._waiting.get(priority)
        if waiting is None:
            waiting = self._waiting[priority] = self._first_few(priority)
        while waiting or priority in self._unseen:
            if not waiting:
                self._unseen.remove(priority)
                waiting += self._of_entries(walk, priority)
                continue
            _, _, gang, entry = waiting[0]
            if gang.id in self._draft.served:
                following = None if entry is None else self._longest(entry)
                heappop(waiting) if following is None else heapreplace(waiting, following)
                continue
            pool = (priority, self._pools.of(gang.demand))
            is_open = pool not in self._over and walk.is_open(gang)
            if not is_open and not closures.is_barred(gang):
                self._over.add(pool)  # there is no room for the next one
            if is_open and (gang is first or yields_to(self._draft, gang, first) or walk.comes_first(gang)):
                return None
            heappop(waiting)
            if is_open:
                return gang
        return None

    def is_over(self, gang: Gang) -> None:
        """This one went before its turn, or has a reservation: no other of its pool and priority is considered."""
        self._over.add((gang.priority, self._pools.of(gang.demand)))

    def has_had_its_turn(self, gang: Gang) -> bool:
        """Where time is shared, a gang that has run already gets no reservation until it has waited longer than
        ``patience``, so that nothing is kept free for it. If it has one, it keeps it."""
        is_early = self._since_ms is None or gang.waiting_since_ms > self._since_ms
        is_returning = gang.served_gpu_ms > 0 and gang.id not in self._state.reservations
        return is_early and is_returning and self._draft.snapshot.shares_time(gang.priority)

    def rests_until_ms(self, gang: Gang, charge: Mapping[str, int]) -> int:
        """Until when no other gang of its pool and priority goes before its turn if this one does, with this charge:
        the larger its part of the pool and the longer its run time, the later."""
        totals = {**self._draft.queues.total, GPU_MILLI: self._pools.gpu_milli(gang.demand.task)}
        expected = self._draft.snapshot.expected_ms(gang)
        parts = [
            PARTS * expected * charge.get(name, 0) // totals[name] for name in SHARE_DIMENSIONS if totals.get(name)
        ]
        return self._draft.now_ms + max(1, *parts)

    def _first_few(self, priority: int) -> list[Waiting]:
        """The gangs of a priority that have waited longest, if they are overdue. Skips pools in which a gang recently
        went before its turn."""
        ages = self._state.backlog.ages.get(priority)
        if ages is None or self._since_ms is None:
            return []
        gangs, is_all = ages.longest(self._since_ms, FEW)
        if gangs:
            self._over.update(self._resting(priority))
        if not is_all:
            self._unseen.add(priority)
        return [(gang.waiting_since_ms, gang.rank, gang, None) for gang in gangs]

    def _of_entries(self, walk: Walk, priority: int) -> list[Waiting]:
        """A heap of the backlog entries of a priority, by the longest wait in each: quota blocks whole entries."""
        found, classes = list[Waiting](), self._state.backlog.classes
        if all((priority, self._pools.of(next(iter(demands)))) in self._over for demands in classes.values()):
            return found
        for entry in walk.open_entries(priority):
            if (priority, self._pools.of(entry.profile.demand)) not in self._over:
                waiting = self._longest(entry)
                if waiting is not None:
                    found.append(waiting)
        heapify(found)
        return found

    def _resting(self, priority: int) -> list[tuple[int, Pool]]:
        found = list[tuple[int, Pool]]()
        for (of_priority, task), known in self._state.out_of_turn.items():
            if of_priority == priority:
                until, gang = known.until_ms, self._state.gangs.get(known.gang)
                if gang is not None:  # it still runs, and may run longer than estimated
                    until = max(until, known.until(self._draft.now_ms, self._draft.snapshot.expected_ms(gang)))
                if until > self._draft.now_ms:
                    found.append((priority, self._pools.of(Demand(task=task))))
        return found

    def _longest(self, entry: BacklogEntry) -> Waiting | None:
        """The gang of an entry that has waited longest, if it is overdue. Only requeued gangs have waited for less than
        their position implies: behind the first gang that was not requeued, none has waited longer."""
        assert self._since_ms is not None
        best: Waiting | None = None
        for place in range(len(entry)):
            gang = self._state.gangs[entry.gang(place)]
            if gang.id in self._draft.served:
                continue
            since = gang.waiting_since_ms
            if since <= self._since_ms and (best is None or since < best[0]):
                best = (since, gang.rank, gang, entry)
            if not gang.attempt:
                break
        return best
