"""The predicted future of all nodes: when, and where, tasks of a demand will fit.

Trusts the estimated run times. A node is computed when something there has changed, and cached in the state. Does not
know which gangs wait or hold reservations, except for the times during which GPUs are reserved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge

from msgspec import Struct

from corral.core.cluster.resources import Demand
from corral.core.model import NEVER_MS, Gang, GangState
from corral.core.snapshot import Draft
from corral.policy.backfill.prospect import Busy, Prospect, Taken

FEW = 64  # up to this many nodes are inserted one by one instead of sorting all

#: (time, node, tasks that fit there from then on)
Opening = tuple[int, int, int]


class Outlook:
    """The prospects of all nodes, as of a position in the state's list of changes. Cached between plans.

    The prospect of a node is valid until the state lists that node among its changes, or until the first gang there
    should have ended and has not.
    """

    __slots__ = ("in_turn", "place", "prospects", "soonest", "until", "version")

    def __init__(self, nodes: int) -> None:
        self.place = 0
        self.version = 0  # increased whenever something has changed
        self.prospects: list[Prospect | None] = [None] * nodes  # None: not computed, or out of date
        self.until = [0] * nodes  # when the first gang there should end; 0: to be checked
        self.soonest = 0  # the least of these
        #: number of GPUs -> (time from which that many of a node are unused, node), earliest first; if it was needed
        self.in_turn: dict[int, list[tuple[int, int]]] = {}

    def put(self, n: int, prospect: Prospect | None) -> None:
        """Set the prospect of a node."""
        old, self.prospects[n] = self.prospects[n], prospect
        for gpus, in_turn in self.in_turn.items():
            if old is not None:
                del in_turn[bisect_left(in_turn, (old.room_from[gpus], n))]
            if prospect is not None:
                insort(in_turn, (prospect.room_from[gpus], n))
        self.until[n] = 0 if prospect is None else prospect.busy[0][0] if prospect.busy else NEVER_MS

    def with_room_for(self, gpus: int) -> list[tuple[int, int]]:
        """(time from which that many GPUs are unused, node), earliest first."""
        known = self.in_turn.get(gpus)
        if known is None:
            found = [(each.room_from[gpus], n) for n, each in enumerate(self.prospects) if each is not None]
            known = self.in_turn[gpus] = sorted(found)
        return known


class Sitting(Struct, frozen=True, gc=False):
    """The seats of an attempt and its expected end, as long as it is in this state."""

    attempt: int
    state: GangState
    end_ms: int
    one: Busy | None  # its only seat
    by_node: dict[str, list[Busy]]  # all its seats, if there are several


class Future:
    """The prospects in a draft: of a node that it has not changed, those of the state."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._snapshot = draft, draft.snapshot
        self._topology = draft.capacity.topology
        self._ends: dict[str, Sitting] = draft.state.memory.setdefault("ends", {})
        self._names = {name: at for at, name in enumerate(draft.capacity.left)}  # of amounts, in the order of columns
        self._alike: dict[tuple[object, ...], Prospect] = {}
        self._drafted: dict[int, tuple[tuple[int, int, int], Prospect]] = {}
        #: what fits beside reservations: the next reservation changes few nodes
        self._beside: dict[tuple[int, Demand, int, int], tuple[Prospect, list[Taken], list[tuple[int, int]]]] = {}
        self._outlook = self._up_to_date()

    def version(self, demand: Demand, taken: Iterable[int]) -> int | None:
        """The version of the prospects; None if the draft has changed a node that matters for this demand."""
        number = self._topology.number
        changed = (number[name] for name in self._changed() if name in number)
        if any(self.usable(demand, n) is not None for nodes in (changed, taken) for n in nodes):
            return None
        return self._outlook.version

    def openings(
        self,
        demand: Demand,
        expected_ms: int,
        avoid: Sequence[str],
        taken: Mapping[int, Sequence[Taken]],
        need_ms: int = 0,
    ) -> Iterator[Opening]:
        """In order of time, whenever more or fewer tasks fit on a node. ``taken``: reserved GPUs and amounts.
        ``need_ms``: how long a node must still be available.

        Equivalent to computing every node and sorting. A node is computed only when as many of its GPUs could be free
        as one task wants: a caller that stops after the first few openings does not compute the others.
        """
        topology = self._topology
        capacity = self._draft.capacity
        now = self._draft.now_ms
        avoided, ahead = {topology.number.get(name) for name in avoid}, list[Opening]()
        accepted = topology.accepted(demand.task)
        kind = topology.kind
        up = capacity.up
        is_open = capacity.open
        wants_gpu = demand.task.wants_gpu
        for since_ms, n in self._in_turn(demand):
            mask = accepted[kind[n]] & up[n]  # as `usable`, for very many
            if not is_open[n] or (wants_gpu and not mask) or n in avoided:
                continue
            while ahead and ahead[0][0] < since_ms:
                yield heappop(ahead)
            spoken_for, prospect = taken.get(n), self.prospect(n)
            if spoken_for is None:
                fits = prospect.fits(demand, mask)
            else:
                asked = (n, demand, mask, expected_ms)
                known = self._beside.get(asked)
                if known is None or known[0] is not prospect or known[1] != spoken_for:
                    beside = prospect.fits_beside(demand, mask, spoken_for, now, expected_ms)
                    known = self._beside[asked] = (prospect, [*spoken_for], beside)
                fits = known[2]
            for time, count in self._in_time(n, fits, need_ms):
                heappush(ahead, (time, n, count))
        while ahead:
            yield heappop(ahead)

    def _in_time(self, n: int, fits: Iterable[tuple[int, int]], need_ms: int) -> Iterable[tuple[int, int]]:
        """The same, but nothing fits once the node will be taken back too soon."""
        ending = self._draft.state.ending
        end = ending.get(self._topology.nodes[n].name) if ending else None
        if end is None:
            return fits
        before = [each for each in fits if each[0] < end - need_ms]
        return [*before, (end - need_ms, 0)] if before and before[-1][1] else before

    def _in_turn(self, demand: Demand) -> Iterator[tuple[int, int]]:
        """(time, node): no task fits there before; earliest first."""
        number, least = self._topology.number, demand.task.gpus or int(demand.task.slice_mib > 0)
        if least > self._topology.gpus_max:
            return iter(())
        changed = {number[name] for name in self._changed() if name in number}
        if not changed:
            return iter(self._outlook.with_room_for(least))
        apart = sorted([(self.prospect(n).room_from[least], n) for n in changed])
        return merge((each for each in self._outlook.with_room_for(least) if each[1] not in changed), apart)

    def usable(self, demand: Demand, n: int) -> int | None:
        """The GPUs of a node that a task may use at some time; None if it may not use the node at all."""
        capacity, topology = self._draft.capacity, self._topology
        mask = topology.accepted(demand.task)[topology.kind[n]] & capacity.up[n]
        return None if not capacity.open[n] or (demand.task.wants_gpu and not mask) else mask

    # ---- nodes -------------------------------------------------------------------------------------------------

    def prospect(self, n: int) -> Prospect:
        """The prospect of a node; of one that the draft has changed, cached until it changes again."""
        draft, name = self._draft, self._topology.nodes[n].name
        if name not in draft.touched and name not in draft.claimed_seats:
            prospect = self._outlook.prospects[n]
            assert prospect is not None, "a node without changes was not computed"
            return prospect
        as_of = (len(draft.leaving), len(draft.seated.get(name, ())), len(draft.claimed_seats.get(name, ())))
        known = self._drafted.get(n)
        if known is None or known[0] != as_of:
            known = self._drafted[n] = (as_of, self._work_out(n, name))
        return known[1]

    def _changed(self) -> set[str]:
        """The nodes that the draft has changed."""
        return self._draft.touched.keys() | self._draft.claimed_seats.keys()

    def _up_to_date(self) -> Outlook:
        """The prospects of all nodes of the state. Equivalent to computing each of them again."""
        state = self._draft.state
        topology = self._topology
        now = self._draft.now_ms
        known: Outlook | None = state.memory.get("outlook")
        if known is None:
            known = state.memory["outlook"] = Outlook(len(topology.nodes))
        stale = {topology.number[name] for name in state.changes[known.place :]}
        known.version += bool(stale)
        if known.soonest <= now:
            stale.update(
                [n for n, until in enumerate(known.until) if until <= now]
            )  # a gang runs longer than estimated
        known.place = len(state.changes)
        changed = self._changed()
        if len(stale) > FEW:
            known.in_turn.clear()
        for n in stale:
            name = topology.nodes[n].name
            if name in changed:
                known.put(n, None)
            else:
                known.put(n, self._work_out(n, name))
                known.version += 1
        if stale:
            known.soonest = min(known.until)
        return known

    def _work_out(self, n: int, name: str) -> Prospect:
        busy, topology = self._busy(name), self._topology
        left = tuple([column[n] for column in self._draft.capacity.left.values()])
        if len(busy) > 1:
            return Prospect(topology, n, busy, left, self._names)
        # a gang of a thousand nodes leaves a thousand equal ones
        key = (topology.kind[n], left, *busy)
        known = self._alike.get(key)
        if known is None:
            known = self._alike[key] = Prospect(topology, n, busy, left, self._names)
        return known

    def _busy(self, name: str) -> list[Busy]:
        draft = self._draft
        gangs = draft.state.gangs
        known = self._ends
        now = draft.now_ms
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
        for coming in (draft.seated.get(name, ()), draft.claimed_seats.get(name, ())):
            for gang, seat in coming:
                start = max(draft.now_ms, gang.eviction.deadline_ms if gang.eviction else 0)
                found.append((start + self._snapshot.hold_ms(gang), seat.gpus, gang.amounts))
        found.sort()
        return found

    def _sits(self, gang: Gang) -> Sitting:
        """The expected end of a gang. Cached for an attempt that runs as estimated."""
        is_told = gang.id in self._draft.leaving
        grace_end = self._draft.now_ms + self._snapshot.job(gang).spec.grace_ms
        end = grace_end if is_told else self._snapshot.expected_end_ms(gang)
        seats = gang.all_seats
        one = None
        by_node = dict[str, list[Busy]]()
        if len(seats) == 1:
            one = (end, seats[0].gpus, gang.amounts)
        else:
            for seat in seats:
                by_node.setdefault(seat.node, []).append((end, seat.gpus, gang.amounts))
        sitting = Sitting(gang.attempt, gang.state, end, one, by_node)
        if not is_told:
            self._ends[gang.id] = sitting
        return sitting
