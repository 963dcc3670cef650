"""Reserved starts for all waiting gangs, which bind later plans: no reservation is moved back for another gang.

A reservation is a number of GPUs of a node from a time on, not particular GPUs, so nothing is wasted between two
reservations. Only for work that can be counted: whole GPUs, one model per node, no islands. When a run ends early, each
waiting gang gets, in order, the earliest start that leaves the reservations of the others as they are. Relies on the
expected run times.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.slots import trimmed
from corral.core.model import Gang, Reservation
from corral.core.snapshot import Draft
from corral.core.state import State
from corral.policy.backfill.calendar import Allowed, last_free
from corral.policy.backfill.future import Future
from corral.policy.backfill.prospect import free_in_turn
from corral.policy.backfill.supply import Change, Supply
from corral.policy.placement.seating import FREE, Bounds, choose

GPUS = ""  # the name of the first supply of a node; the others have the names of amounts


def is_countable(state: State) -> bool:
    """Whether one GPU of a node is as good as another for all gangs that wait, or that may lose their claim."""
    topology = state.topology
    demands = [*state.backlog.demands, *(gang.demand for gang in state.claimants.values())]
    return all(len({(gpu.model, gpu.vram_mib) for gpu in layout}) <= 1 for layout in topology.layouts) and all(
        demand.task.gpus and (demand.tp == 1 or topology.nvlink_level is not None) for demand in demands
    )


class DurableReservations:
    """All reservations, as one plan finds and leaves them. Used instead of a ``TransientReservations``."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._snapshot = draft.snapshot
        self._now = draft.now_ms
        self._topology = draft.capacity.topology
        known = self._topology.number
        self._reservations = {  # all reservations that bind now, by gang
            name: reservation
            for name, reservation in draft.state.reservations.items()
            if all(seat.node in known for seat in reservation.seats)
        }
        self._made: list[Reservation] = []
        self._as_of = (-1, -1)

    @property
    def reservations(self) -> Collection[Reservation]:
        """What binds gangs that have a turn: the reservations of earlier plans, and those of this plan."""
        return self._reservations.values()

    def made(self) -> tuple[Reservation, ...]:
        """The reservations of this plan. A gang that had no turn in it has no reservation any more."""
        return tuple(self._made)

    # ---- reserving ---------------------------------------------------------------------------------------------

    def reserve(
        self, gang: Gang, demand: Demand, size: int, not_before_ms: int = 0, _allowed: Allowed | None = None
    ) -> Reservation | None:
        """Reserve the earliest start that delays no other reservation, for a gang that cannot start now."""
        self._look()
        known = self._give_back(gang.id)
        spec, hold = self._snapshot.job(gang).spec, self._snapshot.hold_ms(gang)
        # a gang that does not fit now may fit at the next change; one that prefers to wait, after its wait
        since = not_before_ms if not_before_ms > self._now else self._all.next_step_ms(self._now)
        reservation = None if since is None else self._earliest(gang, demand, size, hold, since, known)
        if reservation is None or (spec.deadline_ms is not None and reservation.until_ms > spec.deadline_ms):
            return None
        self._made.append(reservation)
        self._reservations[gang.id] = reservation
        self._take(reservation, 1)
        return reservation

    def release(self, gang: str) -> None:
        """Durable reservations bind all gangs, so none is overrun."""

    def _earliest(
        self, gang: Gang, demand: Demand, size: int, hold_ms: int, since_ms: int, known: Reservation | None
    ) -> Reservation | None:
        """Walk forward through the times at which the cluster as a whole has enough, until the gang fits somewhere.

        The start that is reserved for it already (``known``) is still possible: there is no need to search beyond it.
        """
        wanted = size + demand.spares
        avoid = self._snapshot.avoid(gang)
        time = self._all.earliest(wanted * demand.task.gpus, hold_ms, since_ms)
        while time is not None:
            if known is not None and since_ms <= known.at_ms <= time:
                return known if known.until_ms == known.at_ms + hold_ms else replace(known, until_ms=time + hold_ms)
            ending = {*avoid, *self._snapshot.too_short(gang, time - self._now)}
            column = trimmed(self._topology, self._column(demand, time, hold_ms, wanted, ending), demand)
            counts = choose(self._topology, column, demand, wanted)
            if counts is not None:
                return Reservation(gang.id, time, time + hold_ms, self._seats(demand, counts, time))
            step = self._all.next_step_ms(time)
            time = None if step is None else self._all.earliest(wanted * demand.task.gpus, hold_ms, step)
        return None

    def _column(self, demand: Demand, time: int, hold_ms: int, most: int, avoid: Container[str]) -> list[int]:
        """How many tasks each node can hold from a time on."""
        task = demand.task
        topology = self._topology
        until = time + hold_ms
        accepted, found = topology.accepted(task), [0] * len(topology.nodes)
        for n, supplies in enumerate(self._supplies):
            if accepted[topology.kind[n]] and topology.nodes[n].name not in avoid:
                count = min(most, max(0, supplies[GPUS].least(time, until)) // task.gpus)
                for name, each in task.amounts if count else ():
                    left = supplies[name].least(time, until) if name in supplies else 0
                    count = min(count, max(0, left) // each) if each else count
                found[n] = count
        return found

    def _seats(self, demand: Demand, counts: Sequence[tuple[int, int]], at_ms: int) -> tuple[Seat, ...]:
        """Seats on GPUs of each node. It does not matter which; those that are busy now and free by then go first."""
        capacity, found = self._draft.capacity, list[Seat]()
        for n, count in counts:
            prospect = self._future.prospect(n)
            usable = prospect.free_at(capacity.up[n], at_ms, 0, ())
            gpus = last_free(usable, capacity.free[n], prospect.busy, count * demand.task.gpus)
            found.append(Seat(self._topology.nodes[n].name, gpus))
        return tuple(found)

    # ---- what is left for others -------------------------------------------------------------------------------

    def bounds(self, gang: Gang, except_for: Iterable[str] = (), later_ms: int = 0) -> Bounds:
        """What a gang that starts now, or ``later_ms`` later, may not use, so that all reservations can be kept except
        its own and those of ``except_for``."""
        self._look()
        exempt = [self._reservations[name] for name in (gang.id, *except_for) if name in self._reservations]
        for reservation in exempt:
            self._take(reservation, -1)
        capacity, until = self._draft.capacity, self._now + later_ms + self._snapshot.hold_ms(gang)
        barred: dict[int, int] = {}
        kept: dict[int, dict[str, int]] = {}
        for n in self._reserved_nodes:
            needed = self._needed(n, until)
            if any(needed.values()):
                barred[n] = _highest(capacity.free[n], needed[GPUS])
                kept[n] = needed
        for reservation in exempt:
            self._take(reservation, 1)
        return Bounds(barred, kept, capacity.up) if barred else FREE

    def _needed(self, n: int, until_ms: int) -> dict[str, int]:
        """How much of what a node has free now is reserved for a time before ``until_ms``."""
        capacity = self._draft.capacity
        has = {name: capacity.amount_left(n, name) or 0 for name in self._supplies[n] if name != GPUS}
        has[GPUS] = capacity.free[n].bit_count()
        return {name: has[name] - supply.least(self._now, until_ms) for name, supply in self._supplies[n].items()}

    def barred_from_ms(self, gang: Gang, _except_for: Iterable[str] = ()) -> int:
        """The expected run time from which on runs are blocked by whatever keeps this gang from starting now."""
        return self._snapshot.expected_ms(gang)

    def make_way(self, _gang: Gang, _seats: Sequence[Seat], _except_for: Iterable[str] = ()) -> bool:
        """Always False: reservations of numbers of GPUs of a node do not move to other nodes for a later gang."""
        return False

    # ---- what is free when -------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Count what is free when beside all reservations, if the draft has changed since the last count."""
        draft = self._draft
        as_of = (len(draft.served), len(draft.leaving))
        if as_of == self._as_of:
            return
        self._as_of, self._future = as_of, Future(draft)
        self._reservations = {name: each for name, each in self._reservations.items() if name not in draft.served}
        as_they_leave = [self._as_they_leave(n) for n in range(len(self._topology.nodes))]
        self._fill(as_they_leave, self._reservations.values())
        if any(min(supply.free) < 0 for n in self._reserved_nodes for supply in self._supplies[n].values()):
            self._fill(as_they_leave, ())
            self._postpone()

    def _postpone(self) -> None:
        """A run takes longer than expected: reserve all starts again, in the order of the reservations."""
        gangs, snapshot = self._draft.state.gangs, self._snapshot
        found, self._reservations = self._reservations, {}
        for _, _, name in sorted((each.at_ms, gangs[each.gang].rank, each.gang) for each in found.values()):
            gang, since = gangs[name], max(self._now, found[name].at_ms)
            reservation = self._earliest(gang, gang.demand, gang.demand.smallest, snapshot.hold_ms(gang), since, None)
            if reservation is not None:
                self._reservations[name] = reservation
                self._take(reservation, 1)

    def _as_they_leave(self, n: int) -> dict[str, list[Change]]:
        """What a node has free of everything now, and what becomes free as the gangs on it end."""
        capacity, busy = self._draft.capacity, self._future.prospect(n).busy
        up = capacity.up[n] if capacity.open[n] else 0
        before = 0
        gpus = list[Change]()
        for time, free, _ in free_in_turn(busy):
            count = (free & up).bit_count()
            gpus.append((time, count - before))
            before = count
        found = {GPUS: gpus}
        for name in capacity.left:
            left = capacity.amount_left(n, name)
            if left is not None:
                back = [(end, amount) for end, _, amounts in busy for other, amount in amounts if other == name]
                found[name] = [(0, left), *back]
        return found

    def _fill(self, as_they_leave: Sequence[Mapping[str, list[Change]]], reservations: Iterable[Reservation]) -> None:
        """Equivalent to taking one reservation after another; costs as much as sorting them."""
        taken: dict[int, dict[str, list[Change]]] = {}
        for reservation in reservations:
            begin, until = self._span(reservation)
            for n, name, amount in self._needs(reservation):
                changes = taken.setdefault(n, {}).setdefault(name, [])
                changes += ((begin, -amount), (until, amount))
        self._reserved_nodes = dict.fromkeys(taken, True)
        self._supplies = [
            {name: Supply(self._now, [*changes, *taken.get(n, {}).get(name, ())]) for name, changes in by_name.items()}
            for n, by_name in enumerate(as_they_leave)
        ]
        if len(self._supplies) == 1:
            self._all = self._supplies[0][GPUS]
        else:
            everyone = [changes[GPUS] for changes in (*as_they_leave, *taken.values())]
            self._all = Supply(self._now, chain.from_iterable(everyone))

    def _take(self, reservation: Reservation, sign: int) -> None:
        begin, until = self._span(reservation)
        for n, name, amount in self._needs(reservation):
            self._reserved_nodes[n] = True
            supply = self._supplies[n][name]
            supply.take(begin, until, sign * amount)
            if name == GPUS and supply is not self._all:
                self._all.take(begin, until, sign * amount)

    def _give_back(self, name: str) -> Reservation | None:
        reservation = self._reservations.pop(name, None)
        if reservation is not None:
            self._take(reservation, -1)
        return reservation

    def _span(self, reservation: Reservation) -> tuple[int, int]:
        """From when until when: a reservation that is overdue begins now."""
        late = max(0, self._now - reservation.at_ms)
        return reservation.at_ms + late, reservation.until_ms + late

    def _needs(self, reservation: Reservation) -> Iterator[tuple[int, str, int]]:
        """(node, name of the supply, amount) for each supply that a reservation takes from."""
        task = self._draft.state.gangs[reservation.gang].demand.task
        for seat in reservation.seats:
            n, gpus = self._topology.number[seat.node], seat.gpus.bit_count()
            yield n, GPUS, gpus
            for name, each in task.amounts:
                yield n, name, each * (gpus // task.gpus)


def _highest(mask: int, count: int) -> int:
    picked = 0
    for _ in range(min(count, mask.bit_count())):
        high = 1 << mask.bit_length() - 1
        picked |= high
        mask ^= high
    return picked
