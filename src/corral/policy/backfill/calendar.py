"""Reservations of later starts, and what they leave for other gangs now.

A blocked gang near the head of the queue gets a reservation for the earliest time at which it can start beside what
runs now. GPUs are kept for it. Gangs behind it may use them if they are gone by then, or if as many other GPUs will do,
on that node or elsewhere: a reservation is for a time, not for particular GPUs. So small gangs cannot delay a large one
for ever. Relies on the expected run times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter

from msgspec import Struct, field
from msgspec.structs import replace

from corral.core.cluster.resources import Amounts, Demand, Seat
from corral.core.cluster.slots import gpu_slots, trimmed
from corral.core.model import NEVER_MS, Gang, Reservation
from corral.core.snapshot import Draft
from corral.core.state import need_ms
from corral.policy.backfill.future import Future, Opening
from corral.policy.backfill.prospect import Busy, Taken
from corral.policy.placement.seating import FREE, Bounds, choose, whole_gpus

#: When a gang may start, where, and how many of its tasks each node could hold then.
Found = tuple[int, list[tuple[int, int]], list[int]]

#: Returns the first time, not before a given time, at which quota allows a gang to start; None if there is none.
Allowed = Callable[[int], int | None]


class Holding(Struct):
    """What a reservation was made for, and what it takes."""

    demand: Demand
    hold_ms: int
    counts: dict[int, int]  # node -> tasks
    column: list[int]  # tasks that each node could hold then beside all other reservations; a lower bound
    total: int  # the sum of the column
    entries: dict[int, Taken] = field(default_factory=dict)  # node -> what it takes there
    as_of: tuple[int, ...] = ()  # the versions of the draft and the reservations when the column was updated


class TransientReservations:
    """The reservations of one plan."""

    def __init__(self, draft: Draft) -> None:
        self.reservations: list[Reservation] = []
        self._draft = draft
        self._snapshot = draft.snapshot
        self._topology = draft.capacity.topology
        self._holdings: list[Holding] = []  # one per reservation, in the same order
        self._taken: dict[int, list[Taken]] = {}  # node -> GPUs that are reserved there
        self._kept: dict[int, dict[str, int]] = {}  # node -> amounts that reservations need there
        self._bounds: dict[tuple[int, ...], Bounds] = {}
        self._moved = 0  # counts moves of reservations

    @cached_property
    def _future(self) -> Future:
        return Future(self._draft)

    def made(self) -> tuple[Reservation, ...]:
        return tuple(self.reservations)

    # ---- reserving ---------------------------------------------------------------------------------------------

    def reserve(
        self, gang: Gang, demand: Demand, size: int, not_before_ms: int = 0, allowed: Allowed | None = None
    ) -> Reservation | None:
        """Reserve the earliest known start for a gang; None if there is none that is early enough. ``demand`` is the
        gang's own, or one that accepts only GPUs that its queue may have."""
        spec = self._snapshot.job(gang).spec
        expected = self._snapshot.hold_ms(gang)
        need = need_ms(self._draft.state, gang)
        avoid = self._snapshot.avoid(gang)
        found = self._earliest(demand, size, expected, avoid, not_before_ms, need)
        while found is not None and allowed is not None and (begin := allowed(found[0])) != found[0]:
            found = None if begin is None else self._earliest(demand, size, expected, avoid, begin, need)
        if found is None or (spec.deadline_ms is not None and found[0] + (spec.expected_ms or 0) > spec.deadline_ms):
            return None
        at_ms, counts, column = found
        holding = Holding(demand, expected, dict(counts), column.copy(), sum(column))
        reservation = Reservation(gang.id, at_ms, at_ms + expected, self._seats_at(holding, at_ms, {}))
        self._holdings.append(holding)
        self.reservations.append(reservation)
        self._keep(holding, reservation)
        return reservation

    def release(self, gang: str) -> None:
        """Give the reservation of a gang back, to make another one."""
        at = next(at for at, each in enumerate(self.reservations) if each.gang == gang)
        self._cross_out(self._holdings[at])
        self._bounds.clear()
        del self.reservations[at], self._holdings[at]
        self._moved += 1

    def _keep(self, holding: Holding, reservation: Reservation) -> None:
        """Record what a reservation takes of each node."""
        self._bounds.clear()
        for seat in reservation.seats:
            n = self._topology.number[seat.node]
            amounts = tuple([(name, each * holding.counts[n]) for name, each in holding.demand.task.amounts])
            entry = holding.entries[n] = (reservation.at_ms, reservation.until_ms, seat.gpus, amounts)
            self._taken.setdefault(n, []).append(entry)
            self._count(n, amounts, 1)

    def _cross_out(self, holding: Holding) -> None:
        for n, entry in holding.entries.items():
            self._taken[n].remove(entry)
            self._count(n, entry[3], -1)
        holding.entries = {}

    def _count(self, n: int, amounts: Amounts, sign: int) -> None:
        kept = self._kept.setdefault(n, {})
        for name, amount in amounts:
            kept[name] = kept.get(name, 0) + sign * amount

    def _earliest(
        self, demand: Demand, size: int, expected_ms: int, avoid: Sequence[str], not_before_ms: int, need: int
    ) -> Found | None:
        """Go through the times at which GPUs become free until the gang fits somewhere.

        The result is remembered until something changes on nodes where the gang could start, or until its time.
        """
        memory, now = self._draft.state.memory, self._draft.now_ms
        version = self._future.version(demand, self._taken)
        asked = (version, size, expected_ms, tuple(avoid), not_before_ms, need)
        known: tuple[object, Found] | None = memory.get(("earliest", demand))
        if version is not None and known is not None and known[0] == asked and known[1][0] > now:
            return known[1]
        openings = self._future.openings(demand, expected_ms, avoid, self._taken, need)
        found = self._first_fit(openings, demand, size + demand.spares, not_before_ms)
        if found is None:
            return None
        answer = (max(found[0], now, not_before_ms), found[1], found[2])
        if version is not None:
            memory["earliest", demand] = (asked, answer)
        return answer

    def _first_fit(self, openings: Iterator[Opening], demand: Demand, wanted: int, not_before_ms: int) -> Found | None:
        column = [0] * len(self._topology.nodes)
        room, ahead = 0, next(openings, None)
        while ahead is not None:
            time = ahead[0]
            while ahead is not None and ahead[0] == time:
                _, n, count = ahead
                room += count - column[n]
                column[n] = count
                ahead = next(openings, None)
            if room >= wanted and (ahead is None or ahead[0] > not_before_ms):
                counts = choose(self._topology, trimmed(self._topology, column.copy(), demand), demand, wanted)
                if counts is not None:
                    return time, counts, column
        return None

    def _seats_at(self, holding: Holding, time: int, here: Mapping[int, Sequence[Seat]]) -> tuple[Seat, ...]:
        """The GPUs to reserve: preferably GPUs that are busy now, so that free ones stay usable until then. ``here``:
        seats that will be in use."""
        demand = holding.demand
        task = demand.task
        capacity = self._draft.capacity
        topology = self._topology
        found: list[Seat] = []
        for n, count in sorted(holding.counts.items()):
            mask = topology.accepted(task)[topology.kind[n]] & capacity.up[n] & ~_gpus_of(here.get(n, ()))
            prospect = self._future.prospect(n)
            usable = prospect.free_at(mask, time, holding.hold_ms, self._taken.get(n, ()))
            if task.gpus and demand.tp > 1:
                busy_now = usable & ~capacity.free[n]
                rather = busy_now if gpu_slots(topology, demand, n, busy_now) >= count else usable
                picked = 0
                for seat in whole_gpus(topology, demand, n, count, rather):
                    picked |= seat.gpus
            else:
                need = (task.gpus or bool(task.slice_mib)) * count
                is_all = usable.bit_count() <= need
                picked = usable if is_all else last_free(usable, capacity.free[n], prospect.busy, need)
            found.append(Seat(topology.nodes[n].name, picked))
        return tuple(found)

    # ---- what is left for other gangs --------------------------------------------------------------------------

    def barred_from_ms(self, gang: Gang, except_for: Iterable[str] = ()) -> int:
        """The reservations that bind this gang also bind every gang with the same demand and at least the returned
        expected run time. That is more than its own if only its grace makes it end too late and others have a shorter
        grace."""
        state, begins = self._draft.state, [self.reservations[at].at_ms for at in self._binding(gang, except_for)]
        within_ms = max(begins, default=NEVER_MS) - self._draft.now_ms
        return state.backlog.not_gone_ms(gang.demand, within_ms, state.settings.default_expected_ms)

    def _binding(self, gang: Gang, except_for: Iterable[str], later_ms: int = 0) -> tuple[int, ...]:
        """The reservations that begin before a gang would be gone that starts now, or ``later_ms`` after now."""
        until = self._draft.now_ms + later_ms + self._snapshot.hold_ms(gang)
        exempt = frozenset(except_for)
        return tuple(at for at, each in enumerate(self.reservations) if each.at_ms < until and each.gang not in exempt)

    def bounds(self, gang: Gang, except_for: Iterable[str] = (), later_ms: int = 0) -> Bounds:
        """What a gang may not use, given its expected run time. The reservations of ``except_for`` do not bind it. It
        starts ``later_ms`` after now."""
        binding = self._binding(gang, except_for, later_ms)
        if not binding:
            return FREE
        if binding not in self._bounds:
            barred: dict[int, int] = {}
            for at in binding:
                for seat in self.reservations[at].seats:
                    n = self._topology.number[seat.node]
                    barred[n] = barred.get(n, 0) | seat.gpus
            self._bounds[binding] = Bounds(barred, self._kept, self._draft.capacity.up)
        return self._bounds[binding]

    # ---- moving reservations -----------------------------------------------------------------------------------

    def make_way(self, gang: Gang, seats: Sequence[Seat], except_for: Iterable[str] = ()) -> bool:
        """Whether all reservations can keep their times if a gang starts on these seats now. If so, they are moved to
        other GPUs where necessary; if not, nothing changes."""
        here: dict[int, list[Seat]] = {}
        for seat in seats:
            here.setdefault(self._topology.number[seat.node], []).append(seat)
        moved: list[tuple[int, dict[int, int], Reservation]] = []
        for at in self._binding(gang, except_for):
            if not self._is_touched(at, gang, here):
                continue
            counts = self._counts_beside(at, gang, here)
            if counts is None:
                for each, before, reservation in reversed(moved):
                    self._move(each, before, reservation)
                return False
            moved.append((at, self._holdings[at].counts, self.reservations[at]))
            self._move(at, counts, None, here)
        return True

    def _is_touched(self, at: int, gang: Gang, here: Mapping[int, Sequence[Seat]]) -> bool:
        """Whether a reservation needs something that these seats take."""
        entries = self._holdings[at].entries
        return any(n in entries and (gang.amounts or entries[n][2] & _gpus_of(here[n])) for n in here)

    def _move(
        self, at: int, counts: dict[int, int], to: Reservation | None, here: Mapping[int, Sequence[Seat]] | None = None
    ) -> None:
        """Move a reservation to the seats of ``to``, or to the best seats beside ``here``, which will be in use."""
        holding, reservation = self._holdings[at], self.reservations[at]
        self._cross_out(holding)
        holding.counts = counts
        to = to or replace(reservation, seats=self._seats_at(holding, reservation.at_ms, here or {}))
        self.reservations[at], self._moved = to, self._moved + 1
        self._keep(holding, to)

    def _counts_beside(self, at: int, gang: Gang, here: Mapping[int, Sequence[Seat]]) -> dict[int, int] | None:
        """How many tasks each node starts then if these seats are in use: unchanged, if possible. None: too few."""
        holding, column = self._holdings[at], self._column_of(at)
        rooms = {n: self._room_at(at, n, gang.amounts, seats) if column[n] else 0 for n, seats in here.items()}
        if all(room >= holding.counts.get(n, 0) for n, room in rooms.items()):
            return holding.counts
        wanted = sum(holding.counts.values())
        if holding.total - sum(column[n] - room for n, room in rooms.items()) < wanted:
            return None
        column, demand = column.copy(), holding.demand
        for n, room in rooms.items():
            column[n] = room
        counts = choose(self._topology, trimmed(self._topology, column, demand), demand, wanted)
        return None if counts is None else dict(counts)

    def _column_of(self, at: int) -> list[int]:
        """How many tasks each node could hold when a reservation begins. Only nodes that have changed since the last
        update are checked again; an increase is ignored."""
        draft, holding = self._draft, self._holdings[at]
        as_of: tuple[int, ...] = (len(draft.served), len(draft.leaving), len(draft.dropped))
        if len(self.reservations) > 1:
            as_of = (*as_of, self._moved, len(self.reservations))
        if holding.as_of != as_of:
            number, column = self._topology.number, holding.column
            changed = {number[name] for name in draft.touched if name in number}
            if len(self.reservations) > 1:
                changed.update(self._taken)
            for n in changed:
                if column[n]:
                    column[n] = min(column[n], self._room_at(at, n, (), ()))
            holding.as_of, holding.total = as_of, sum(column)
        return holding.column

    def _room_at(self, at: int, n: int, amounts: Amounts, seats: Sequence[Seat]) -> int:
        """How many tasks a node can hold when a reservation begins, beside all other reservations and these seats."""
        holding, reservation = self._holdings[at], self.reservations[at]
        mask = self._future.usable(holding.demand, n)
        if mask is None:
            return 0
        taken = list(self._taken.get(n, ()))
        if n in holding.entries:
            taken.remove(holding.entries[n])
        in_use = {name: amount * len(seats) for name, amount in amounts}
        mask &= ~_gpus_of(seats)
        prospect = self._future.prospect(n)
        return prospect.fits_at(holding.demand, mask, reservation.at_ms, holding.hold_ms, taken, in_use)


def _gpus_of(seats: Iterable[Seat]) -> int:
    mask = 0
    for seat in seats:
        mask |= seat.gpus
    return mask


def last_free(usable: int, free_now: int, busy: Iterable[Busy], need: int) -> int:
    """Pick ``need`` of the usable GPUs: first those that become free last, and GPUs that are free now at the end."""
    picked = 0
    order = (gpus & ~free_now for _, gpus, _ in sorted(busy, key=itemgetter(0), reverse=True))
    for gpus in chain(order, (usable,)):
        mask = gpus & usable & ~picked
        while mask:
            if not need:
                return picked
            high = 1 << mask.bit_length() - 1
            picked |= high
            mask ^= high
            need -= 1
    return picked
