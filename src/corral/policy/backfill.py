"""Starts promised for later, and what that leaves for others now.

A blocked gang near the head of the line is promised the earliest time and the seats at which everything that runs now
would let it start. Whoever comes behind may take those GPUs only if it is gone by then. So nothing small can hold up
something large for ever. Believes what it is told about how long things run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.slots import gpu_slots, trimmed
from corral.core.model import NEVER_MS, Gang
from corral.core.plan import Reservation
from corral.core.snapshot import Draft
from corral.policy.placement import FREE, Bounds, choose

#: (when it is free again, GPUs, gang) of one seat
Busy = tuple[int, int, Gang]
Back = Sequence[Busy]
#: (time, node, tasks that fit there from then on)
Opening = tuple[int, int, int]


def _by_end(item: Busy) -> int:
    return item[0]


class Calendar:
    """The reservations of one plan, and the future of each node as far as it is known."""

    def __init__(self, draft: Draft) -> None:
        self.reservations: list[Reservation] = []
        self._draft = draft
        self._snapshot = draft.snapshot
        self._topology = draft.capacity.topology
        self._ends: dict[str, int] = {}
        self._future: dict[int, list[Busy]] = {}  # node -> who sits there now
        self._taken: dict[int, list[tuple[int, int, int]]] = {}  # node -> (from, until, GPUs) of reservations
        self._wanted: dict[int, dict[str, int]] = {}  # node -> amounts that reservations need there
        self._bounds: dict[tuple[int, ...], Bounds] = {}

    # ---- promising ---------------------------------------------------------------------------------------------

    def reserve(self, gang: Gang, size: int) -> Reservation | None:
        """Promise a gang the earliest start that can be foreseen; None if none can."""
        demand = gang.demand
        expected = self._snapshot.expected_ms(gang)
        found = self._earliest(demand, size, expected, gang.profile.avoid)
        if found is None:
            return None
        at_ms, seats = found
        reservation = Reservation(gang.id, at_ms, at_ms + expected, seats)
        self.reservations.append(reservation)
        self._bounds.clear()
        for seat in seats:
            n = self._topology.number[seat.node]
            self._taken.setdefault(n, []).append((at_ms, at_ms + expected, seat.gpus))
            wanted = self._wanted.setdefault(n, {})
            for name, amount in demand.task.amounts:
                wanted[name] = wanted.get(name, 0) + amount
        return reservation

    def _earliest(
        self, demand: Demand, size: int, expected_ms: int, avoid: Sequence[str]
    ) -> tuple[int, tuple[Seat, ...]] | None:
        """Walk forward through the times at which GPUs become free until the gang fits somewhere."""
        wanted = size + demand.spares
        changes = sorted(self._openings(demand, expected_ms, avoid))
        column = [0] * len(self._topology.nodes)
        room, at = 0, 0
        while at < len(changes):
            time = changes[at][0]
            while at < len(changes) and changes[at][0] == time:
                _, n, count = changes[at]
                room += count - column[n]
                column[n] = count
                at += 1
            if room >= wanted:
                counts = choose(self._topology, trimmed(self._topology, column.copy(), demand), demand, wanted)
                if counts is not None:
                    time = max(time, self._draft.now_ms)
                    return time, self._seats_at(demand, counts, time, expected_ms)
        return None

    def _openings(self, demand: Demand, expected_ms: int, avoid: Sequence[str]) -> list[Opening]:
        """(time, node, tasks that fit from then on) whenever that number changes, over all nodes."""
        topology, capacity, state = self._topology, self._draft.capacity, self._draft.state
        accepted = topology.accepted(demand.task)
        stamps, touched, now = state.stamps, self._draft.touched, self._draft.now_ms
        known = state.memory.setdefault(("openings", demand.task, demand.tp), {})
        found: list[Opening] = []
        for n, node in enumerate(topology.nodes):
            if not capacity.open[n] or node.name in avoid:
                continue
            if n in self._taken or node.name in touched:
                found += self._openings_on(n, demand, accepted[topology.kind[n]], expected_ms)
                continue
            # the same as the line above; what was worked out earlier holds while nothing on the node has changed
            stamp, until, openings = known.get(n, (None, 0, ()))
            if stamp != stamps.get(node.name) or until <= now:
                openings = self._openings_on(n, demand, accepted[topology.kind[n]], expected_ms)
                until = min((end for end, _, _ in self._busy(n)), default=NEVER_MS)
                known[n] = (stamps.get(node.name), until, openings)
            found += openings
        return found

    def _openings_on(self, n: int, demand: Demand, accepted: int, expected_ms: int) -> list[Opening]:
        found: list[Opening] = []
        mask = accepted & self._draft.capacity.up[n]
        if demand.task.wants_gpu and not mask:
            return found
        last = 0
        for time, usable, back in self._free_over_time(n, mask, expected_ms):
            count = self._tasks_at(demand, n, usable, back)
            if count != last:
                found.append((time, n, count))
                last = count
        return found

    def _free_over_time(self, n: int, mask: int, expected_ms: int) -> Iterator[tuple[int, int, Back]]:
        """(time, GPUs that are free from then for as long as they are needed, who has left by then), in order of time."""
        if n in self._taken:
            yield from self._free_beside_reservations(n, mask, expected_ms)
            return
        busy = self._busy(n)
        usable, back = mask, 0
        for _, gpus, _ in busy:
            usable &= ~gpus
        yield 0, usable, ()
        later = [gpus for _, gpus, _ in busy]
        for at, (end, gpus, _) in enumerate(busy):
            back = at + 1
            # a GPU that is shared, or promised to someone else, is free when the last of them has left
            freed = gpus & mask
            if freed & ~usable:
                for other in later[back:]:
                    freed &= ~other
                usable |= freed
            yield end, usable, busy[:back]

    def _free_beside_reservations(self, n: int, mask: int, expected_ms: int) -> Iterator[tuple[int, int, Back]]:
        """The same where reservations lie: what is free long enough, at every time when something begins or ends."""
        busy, taken = self._busy(n), self._taken[n]
        times = {self._draft.now_ms, *(end for end, _, _ in busy), *(until for _, until, _ in taken)}
        for time in sorted(times):
            usable = mask
            for end, gpus, _ in busy:
                if end > time:
                    usable &= ~gpus
            for begin, until, gpus in taken:
                if begin < time + expected_ms and until > time:
                    usable &= ~gpus
            yield time, usable, [item for item in busy if item[0] <= time]

    def _tasks_at(self, demand: Demand, n: int, usable: int, back: Back) -> int:
        """How many tasks fit on a node, amounts included; reservations there keep the amounts they need."""
        task, topology, capacity = demand.task, self._topology, self._draft.capacity
        if task.slice_mib:
            gpus = topology.nodes[n].gpus
            count = sum(gpus[i].vram_mib // task.slice_mib for i in range(len(gpus)) if usable >> i & 1)
        else:
            count = gpu_slots(topology, demand, n, usable) if task.gpus else demand.tasks + demand.spares
        if not count:
            return 0
        reserved = self._wanted.get(n)
        for name, each in task.amounts:
            column = capacity.left.get(name)
            left = None if column is None else column[n]
            if left is None:
                return 0
            for _, _, gang in back:
                for other, amount in gang.profile.demand.task.amounts:
                    if other == name:
                        left += amount
            if reserved:
                left -= reserved.get(name, 0)
            if each and left < each * count:
                count = max(0, left // each)
        return count

    def _busy(self, n: int) -> list[Busy]:
        """Who sits, or will sit, on a node, and until when; who leaves first comes first."""
        found = self._future.get(n)
        name = self._topology.nodes[n].name
        seated, promised = self._draft.seated.get(name, ()), self._draft.promised.get(name, ())
        if found is None:
            state = self._draft.state
            found = []
            for tenant in state.tenants[name]:
                gang = state.gangs[tenant]
                end = self._end(gang)
                if len(gang.seats) == 1 and not gang.spares:
                    found.append((end, gang.seats[0].gpus, gang))
                else:
                    found += [(end, seat.gpus, gang) for seat in gang.all_seats if seat.node == name]
            found.sort(key=_by_end)
            self._future[n] = found
        if not seated and not promised:
            return found
        now = self._draft.now_ms
        more = [
            (max(now, gang.eviction.deadline_ms if gang.eviction else 0) + self._snapshot.expected_ms(gang), seat.gpus, gang)
            for gang, seat in (*seated, *promised)
        ]
        return sorted([*found, *more], key=_by_end)

    def _end(self, gang: Gang) -> int:
        known = self._ends.get(gang.id)
        if known is None:
            if gang.id in self._draft.leaving:
                known = self._draft.now_ms + self._snapshot.job(gang).spec.grace_ms
            else:
                known = self._snapshot.expected_end_ms(gang)
            self._ends[gang.id] = known
        return known

    def _seats_at(
        self, demand: Demand, counts: Sequence[tuple[int, int]], time: int, expected_ms: int
    ) -> tuple[Seat, ...]:
        """The GPUs to reserve: rather those that are busy until then, so that what is free now stays usable until then."""
        task, capacity = demand.task, self._draft.capacity
        found: list[Seat] = []
        for n, count in counts:
            name = self._topology.nodes[n].name
            mask = self._topology.accepted(task)[self._topology.kind[n]] & capacity.up[n]
            usable = 0
            for when, free, _ in self._free_over_time(n, mask, expected_ms):
                if when <= time:
                    usable = free
            need = (task.gpus or bool(task.slice_mib)) * count
            found.append(Seat(name, _last_free(usable, capacity.free[n], self._busy(n), need)))
        return tuple(found)

    # ---- what is left for others -------------------------------------------------------------------------------

    def bounds(self, gang: Gang, except_for: Iterable[str] = ()) -> Bounds:
        """What a gang may not use, given how long it is thought to run. Reservations of ``except_for`` do not bind it."""
        until = self._draft.now_ms + self._snapshot.expected_ms(gang)
        exempt = frozenset(except_for)
        binding = tuple(
            at for at, each in enumerate(self.reservations) if each.at_ms < until and each.gang not in exempt
        )
        if not binding:
            return FREE
        if binding not in self._bounds:
            barred: dict[int, int] = {}
            for at in binding:
                for seat in self.reservations[at].seats:
                    n = self._topology.number[seat.node]
                    barred[n] = barred.get(n, 0) | seat.gpus
            self._bounds[binding] = Bounds(barred, self._wanted, self._draft.capacity.up)
        return self._bounds[binding]


def _last_free(usable: int, free_now: int, busy: Iterable[Busy], need: int) -> int:
    """``need`` of the usable GPUs, those that become free last first, those free now last."""
    picked = 0
    order = [gpus & usable & ~free_now for _, gpus, _ in sorted(busy, key=lambda item: -item[0])]
    for mask in (*order, usable):
        mask &= ~picked
        while mask and picked.bit_count() < need:
            high = 1 << mask.bit_length() - 1
            picked |= high
            mask ^= high
    return picked
