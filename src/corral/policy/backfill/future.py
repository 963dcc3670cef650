"""The foreseeable future of each node: who sits there, until when, and what fits once they have left.

Believes what it is told about how long things run. Knows nothing of who waits or what was promised to whom, but for
the times during which GPUs are spoken for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import or_

from msgspec import Struct

from corral.core.cluster.resources import Amounts, Demand
from corral.core.cluster.slots import gpu_slots
from corral.core.model import NEVER_MS, Gang, GangState
from corral.core.snapshot import Draft

FEW = 32  # nodes, of which each is looked up rather than all sorted
_MANY = 1 << 20  # tasks that want no GPU: only the amounts bound them

#: (when it is free again, GPUs, amounts) of one seat
Busy = tuple[int, int, Amounts]
#: (from, until, GPUs) that are spoken for
Taken = tuple[int, int, int]
#: (time, GPUs that are free from then on, what is left of each amount, in the order of the columns)
Step = tuple[int, int, tuple[int | None, ...]]
#: (time, node, tasks that fit there from then on)
Opening = tuple[int, int, int]


class Known:
    """The openings for one kind of task on all nodes, as of a place in the state's list of changes."""

    __slots__ = ("by_node", "flat", "place", "soonest", "until", "version")

    def __init__(self, nodes: int) -> None:
        self.place = 0
        self.version = 0  # counts whenever something has changed on a node where such a task may sit some day
        self.until = [0] * nodes  # when the first who sits there should be gone
        self.soonest = 0  # the least of these
        self.by_node: list[Sequence[Opening]] = [()] * nodes
        self.flat: list[Opening] = []  # all of them, in order of time


class Sitting(Struct, frozen=True, gc=False):
    """Until when an attempt sits where, as long as it is in this state."""

    attempt: int
    state: GangState
    end_ms: int
    one: Busy | None  # its only seat
    by_node: dict[str, list[Busy]]  # all its seats, if there are several


class Future:
    """What a draft expects. Nodes are worked out when something there has changed, and remembered in the state."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._snapshot = draft, draft.snapshot
        self._topology = draft.capacity.topology
        self._ends: dict[str, Sitting] = draft.state.memory.setdefault("ends", {})
        self._amounts = {name: at for at, name in enumerate(draft.capacity.left)}  # in the order of the columns
        self._drafted: dict[int, tuple[tuple[int, int, int], list[Busy]]] = {}
        self._sitting = self._sitting_now()

    def openings(
        self,
        demand: Demand,
        expected_ms: int,
        avoid: Sequence[str],
        taken: dict[int, list[Taken]],
        kept: dict[int, dict[str, int]],
    ) -> tuple[list[Opening], int | None]:
        """In order of time, whenever more or fewer tasks fit on a node. ``taken``, ``kept``: what is spoken for.

        Also which version this is of what is known, if the draft has changed none of these nodes.
        """
        draft, number = self._draft, self._topology.number
        known = self._known(demand)
        apart = {number[name] for name in (*draft.touched, *draft.promised, *avoid) if name in number} | taken.keys()
        instead: dict[int, Sequence[Opening]] = {}
        avoided = frozenset(avoid)
        for n in sorted(apart):
            mask = self._usable(demand, n)
            if mask is None and not known.by_node[n]:
                continue
            if self._topology.nodes[n].name in avoided or mask is None:
                instead[n] = ()
            elif n in taken:
                instead[n] = list(self._beside(n, demand, mask, expected_ms, taken[n], kept.get(n, {})))
            else:
                instead[n] = self._as_they_leave(n, demand, mask, self.busy(n))
        if not instead:
            return known.flat, known.version
        return _exchanged(known.flat.copy(), known.by_node, instead), None

    def _known(self, demand: Demand) -> Known:
        """What is known for a task, brought up to date. Equivalent to working out every node anew."""
        state, now = self._draft.state, self._draft.now_ms
        nodes = len(self._topology.nodes)
        known: Known | None = state.memory.get((demand.task, demand.tp))
        if known is None:
            known = state.memory[demand.task, demand.tp] = Known(nodes)
            stale = set(range(nodes))
        else:
            number = self._topology.number
            stale = {number[name] for name in state.changes[known.place :]}
            if known.soonest <= now:
                stale |= {n for n, until in enumerate(known.until) if until <= now}  # somebody overran
        known.place = len(state.changes)
        if stale:
            fresh = {n: self._work_out(known, demand, n) for n in stale}
            known.flat = _exchanged(known.flat, known.by_node, fresh)
            known.version += any(openings or known.by_node[n] for n, openings in fresh.items())
            for n, openings in fresh.items():
                known.by_node[n] = openings
            known.soonest = min(known.until)
        return known

    def _work_out(self, known: Known, demand: Demand, n: int) -> list[Opening]:
        name, mask = self._topology.nodes[n].name, self._usable(demand, n)
        if name in self._draft.touched or name in self._draft.promised:
            known.until[n] = 0  # not as the state has it: to be looked at again
            return []
        busy = self.busy(n)
        known.until[n] = busy[0][0] if busy else NEVER_MS
        return [] if mask is None else self._as_they_leave(n, demand, mask, busy)

    def _usable(self, demand: Demand, n: int) -> int | None:
        """The GPUs of a node that a task may use some day; None if it may not sit there at all."""
        capacity, topology = self._draft.capacity, self._topology
        mask = topology.accepted(demand.task)[topology.kind[n]] & capacity.up[n]
        return None if not capacity.open[n] or (demand.task.wants_gpu and not mask) else mask

    def _sitting_now(self) -> dict[int, list[Busy]]:
        """What is known of who sits where: for nodes that have not changed, as it was worked out last."""
        state, number = self._draft.state, self._topology.number
        known: dict[int, list[Busy]]
        place, known = state.memory.get("sitting", (0, {}))
        for name in state.changes[place:]:
            known.pop(number[name], None)
        state.memory["sitting"] = (len(state.changes), known)
        return known

    def busy(self, n: int) -> list[Busy]:
        """Who sits, or will sit, on a node, and until when; who leaves first comes first."""
        name = self._topology.nodes[n].name
        if name in self._draft.touched or name in self._draft.promised:
            return self._busy_in_draft(n, name)
        found = self._sitting.get(n)
        if found is None or (found and found[0][0] <= self._draft.now_ms):
            found = self._sitting[n] = self._busy(name)
        return found

    def _busy_in_draft(self, n: int, name: str) -> list[Busy]:
        """As the draft has it, remembered until the draft changes."""
        draft = self._draft
        as_of = (len(draft.leaving), len(draft.seated.get(name, ())), len(draft.promised.get(name, ())))
        known = self._drafted.get(n)
        if known is None or known[0] != as_of:
            known = self._drafted[n] = (as_of, self._busy(name))
        return known[1]

    def _busy(self, name: str) -> list[Busy]:
        draft, gangs, known, now = self._draft, self._draft.state.gangs, self._ends, self._draft.now_ms
        found: list[Busy] = []
        for tenant in draft.state.tenants[name]:
            gang, sitting = gangs[tenant], known.get(tenant)
            if (
                sitting is None
                or sitting.attempt != gang.attempt
                or sitting.state is not gang.state
                or sitting.end_ms <= now
                or tenant in draft.leaving
            ):
                sitting = self._sits(gang)
            if sitting.one is not None:
                found.append(sitting.one)
            else:
                found += sitting.by_node[name]
        for gang, seat in (*draft.seated.get(name, ()), *draft.promised.get(name, ())):
            start = max(draft.now_ms, gang.eviction.deadline_ms if gang.eviction else 0)
            found.append((start + self._snapshot.hold_ms(gang), seat.gpus, gang.amounts))
        found.sort()
        return found

    def free_at(self, n: int, mask: int, time: int, expected_ms: int, taken: Sequence[Taken]) -> int:
        """The GPUs of a node that are free from a time on for as long as they are needed."""
        for end, gpus, _ in reversed(self.busy(n)):  # who leaves last comes first
            if end <= time:
                break
            mask &= ~gpus
        for begin, until, gpus in taken:
            if begin < time + expected_ms and until > time:
                mask &= ~gpus
        return mask

    # ---- one node ----------------------------------------------------------------------------------------------

    def _as_they_leave(self, n: int, demand: Demand, mask: int, busy: Sequence[Busy]) -> list[Opening]:
        """How many tasks fit when everyone still sits there, when the first has left, and so on."""
        task, found, last = demand.task, list[Opening](), 0
        if task.gpus and (demand.tp == 1 or self._topology.nvlink_level is not None):
            # equivalent to the general case below; what becomes free when is the same for every demand
            names = self._amounts
            each, wanted = task.gpus, [(names.get(name, -1), amount) for name, amount in task.amounts]
            for time, free, left in self._steps(n, busy) if wanted else _without_amounts(busy):
                count = (free & mask).bit_count() // each
                for at, amount in wanted if count else ():
                    has = None if at < 0 else left[at]
                    if has is None or has < amount * count:
                        count = 0 if has is None else max(0, has // amount)
                if count != last:
                    found.append((time, n, count))
                    last = count
            return found
        for time, free, gone in free_in_turn(busy):
            count = self._tasks(demand, n, mask & free, busy[:gone], {})
            if count != last:
                found.append((time, n, count))
                last = count
        return found

    def _steps(self, n: int, busy: Sequence[Busy]) -> list[Step]:
        """What is free on a node and what is left there, as they leave. Remembered as long as they are the same."""
        memory: dict[int, tuple[Sequence[Busy], list[Step]]] = self._draft.state.memory.setdefault("steps", {})
        known = memory.get(n)
        if known is None or known[0] is not busy:
            columns = self._draft.capacity.left.values()
            left: list[int | None] = [column[n] for column in columns]
            steps: list[Step] = []
            for time, free, gone in free_in_turn(busy):
                if gone:
                    for name, amount in busy[gone - 1][2]:
                        at = self._amounts[name]
                        left[at] = (left[at] or 0) + amount
                steps.append((time, free, tuple(left)))
            known = memory[n] = (busy, steps)
        return known[1]

    def _beside(
        self,
        n: int,
        demand: Demand,
        mask: int,
        expected_ms: int,
        taken: Sequence[Taken],
        kept: dict[str, int],
    ) -> Iterator[Opening]:
        """Where GPUs are spoken for: what is free long enough, at every time when something begins or ends."""
        busy, last, gone = self.busy(n), 0, 0
        free = [free for _, free, _ in free_in_turn(busy)]
        ahead = sorted(taken)
        for time in sorted({0, *(end for end, _, _ in busy), *(until for _, until, _ in taken)}):
            since = max(time, self._draft.now_ms)
            until = since + expected_ms
            while gone < len(busy) and busy[gone][0] <= since:
                gone += 1
            usable = mask & free[gone]
            for begin, end, gpus in ahead:
                if begin >= until:
                    break
                if end > since:
                    usable &= ~gpus
            count = self._tasks(demand, n, usable, busy[:gone], kept) if usable or not demand.task.wants_gpu else 0
            if count != last:
                yield time, n, count
                last = count

    def _tasks(self, demand: Demand, n: int, usable: int, gone: Sequence[Busy], kept: dict[str, int]) -> int:
        """How many tasks fit on these GPUs once some have left, leaving the amounts that must be kept."""
        task, topology, capacity = demand.task, self._topology, self._draft.capacity
        if task.slice_mib:
            gpus = topology.nodes[n].gpus
            count = sum(gpus[i].vram_mib // task.slice_mib for i in range(len(gpus)) if usable >> i & 1)
        else:
            count = gpu_slots(topology, demand, n, usable) if task.gpus else _MANY
        if not count:
            return 0
        for name, each in task.amounts:
            column = capacity.left.get(name)
            left = None if column is None else column[n]
            if left is None:
                return 0
            left -= kept.get(name, 0)
            if each and left < each * count:
                left += sum(amount for _, _, amounts in gone for other, amount in amounts if other == name)
                if left < each * count:
                    count = max(0, left // each)
        return count

    def _sits(self, gang: Gang) -> Sitting:
        """When a gang is thought to be gone. Remembered for an attempt that runs as it was thought to."""
        is_told = gang.id in self._draft.leaving
        grace_end = self._draft.now_ms + self._snapshot.job(gang).spec.grace_ms
        end = grace_end if is_told else self._snapshot.expected_end_ms(gang)
        seats, one, by_node = gang.all_seats, None, dict[str, list[Busy]]()
        if len(seats) == 1:
            one = (end, seats[0].gpus, gang.amounts)
        else:
            for seat in seats:
                by_node.setdefault(seat.node, []).append((end, seat.gpus, gang.amounts))
        sitting = Sitting(gang.attempt, gang.state, end, one, by_node)
        if not is_told:
            self._ends[gang.id] = sitting
        return sitting


def _exchanged(
    flat: list[Opening], by_node: Sequence[Sequence[Opening]], fresh: Mapping[int, Sequence[Opening]]
) -> list[Opening]:
    """The openings of all nodes in order, with fresh ones for some. May change ``flat``.

    Equivalent to leaving out those of these nodes, adding the fresh ones and sorting; where they are few, each is
    looked up in its place.
    """
    if len(fresh) > FEW:
        flat = [opening for opening in flat if opening[1] not in fresh]
        flat += chain.from_iterable(fresh.values())
        flat.sort()
        return flat
    for n, openings in fresh.items():
        if openings != by_node[n]:
            for opening in by_node[n]:
                del flat[bisect_left(flat, opening)]
            for opening in openings:
                insort(flat, opening)
    return flat


def free_in_turn(busy: Sequence[Busy]) -> list[tuple[int, int, int]]:
    """(time, GPUs that nobody holds from then on, how many have left): now, when the first has left, and so on."""
    held = list(accumulate([gpus for _, gpus, _ in reversed(busy)], or_, initial=0))
    times = [0, *[end for end, _, _ in busy]]
    return [(time, ~gpus, gone) for gone, (time, gpus) in enumerate(zip(times, reversed(held), strict=True))]


def _without_amounts(busy: Sequence[Busy]) -> list[Step]:
    return [(time, free, ()) for time, free, _ in free_in_turn(busy)]
