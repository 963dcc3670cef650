"""Starts promised for later, and what that leaves for others now.

A blocked gang near the head of the line is promised the earliest time and the seats at which everything that runs now
would let it start. Whoever comes behind may take those GPUs only if it is gone by then. So nothing small can hold up
something large for ever. Believes what it is told about how long things run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter

from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.slots import gpu_slots, trimmed
from corral.core.model import NEVER_MS, Gang, Reservation
from corral.core.snapshot import Draft
from corral.core.state import need_ms
from corral.policy.backfill.future import Future, Opening
from corral.policy.backfill.prospect import Busy, Taken
from corral.policy.placement import FREE, Bounds, choose, whole_gpus


class Calendar:
    """The reservations of one plan."""

    def __init__(self, draft: Draft) -> None:
        self.reservations: list[Reservation] = []
        self._draft = draft
        self._snapshot = draft.snapshot
        self._topology = draft.capacity.topology
        self._taken: dict[int, list[Taken]] = {}  # node -> GPUs that are reserved there
        self._kept: dict[int, dict[str, int]] = {}  # node -> amounts that reservations need there
        self._bounds: dict[tuple[int, ...], Bounds] = {}

    @cached_property
    def _future(self) -> Future:
        return Future(self._draft)

    def made(self) -> tuple[Reservation, ...]:
        return tuple(self.reservations)

    # ---- promising ---------------------------------------------------------------------------------------------

    def reserve(self, gang: Gang, size: int, not_before_ms: int = 0) -> Reservation | None:
        """Promise a gang the earliest start that can be foreseen; None if there is none that is early enough."""
        demand, spec = gang.demand, self._snapshot.job(gang).spec
        expected = self._snapshot.hold_ms(gang)
        need = need_ms(self._draft.state, gang)
        found = self._earliest(demand, size, expected, self._snapshot.avoid(gang), not_before_ms, need)
        if found is None or (spec.deadline_ms is not None and found[0] + (spec.expected_ms or 0) > spec.deadline_ms):
            return None
        at_ms, seats = found
        reservation = Reservation(gang.id, at_ms, at_ms + expected, seats)
        self.reservations.append(reservation)
        self._bounds.clear()
        for seat in seats:
            n = self._topology.number[seat.node]
            self._taken.setdefault(n, []).append((at_ms, at_ms + expected, seat.gpus))
        for n, count in self._tasks_by_node(seats, demand).items():
            kept = self._kept.setdefault(n, {})
            for name, amount in demand.task.amounts:
                kept[name] = kept.get(name, 0) + amount * count
        return reservation

    def _tasks_by_node(self, seats: Sequence[Seat], demand: Demand) -> dict[int, int]:
        each = max(1, demand.task.gpus)
        number = self._topology.number
        return {number[seat.node]: max(1, seat.gpus.bit_count() // each) for seat in seats}

    def _earliest(
        self, demand: Demand, size: int, expected_ms: int, avoid: Sequence[str], not_before_ms: int, need: int
    ) -> tuple[int, tuple[Seat, ...]] | None:
        """Walk forward through the times at which GPUs become free until the gang fits somewhere.

        What was found is remembered, and holds until something changes where the gang could sit, or its time has come.
        """
        memory, now = self._draft.state.memory, self._draft.now_ms
        version = self._future.version(demand, self._taken)
        asked = (version, size, expected_ms, tuple(avoid), not_before_ms, need)
        known: tuple[object, tuple[int, tuple[Seat, ...]]] | None = memory.get(("earliest", demand))
        if version is not None and known is not None and known[0] == asked and known[1][0] > now:
            return known[1]
        openings = self._future.openings(demand, expected_ms, avoid, self._taken, self._kept, need)
        found = self._first_fit(openings, demand, size + demand.spares, not_before_ms)
        if found is None:
            return None
        time = max(found[0], now, not_before_ms)
        answer = (time, self._seats_at(demand, found[1], time, expected_ms))
        if version is not None:
            memory["earliest", demand] = (asked, answer)
        return answer

    def _first_fit(
        self, openings: Iterator[Opening], demand: Demand, wanted: int, not_before_ms: int
    ) -> tuple[int, list[tuple[int, int]]] | None:
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
                    return time, counts
        return None

    def _seats_at(
        self, demand: Demand, counts: Sequence[tuple[int, int]], time: int, expected_ms: int
    ) -> tuple[Seat, ...]:
        """The GPUs to reserve: rather those that are busy now, so that what is free stays usable until then."""
        task, capacity, topology = demand.task, self._draft.capacity, self._topology
        found: list[Seat] = []
        for n, count in counts:
            mask = topology.accepted(task)[topology.kind[n]] & capacity.up[n]
            prospect = self._future.prospect(n)
            usable = prospect.free_at(mask, time, expected_ms, self._taken.get(n, ()))
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

    # ---- what is left for others -------------------------------------------------------------------------------

    def shortest_barred_ms(self, gang: Gang, except_for: Iterable[str] = ()) -> int:
        """Whatever the same reservations keep this gang from, they keep every run of so long or longer from."""
        begins = [self.reservations[at].at_ms - self._draft.now_ms for at in self._binding(gang, except_for)]
        return min(self._snapshot.expected_ms(gang), max(begins, default=NEVER_MS))

    def _binding(self, gang: Gang, except_for: Iterable[str]) -> tuple[int, ...]:
        """The reservations that begin before a gang that starts now would be gone."""
        until = self._draft.now_ms + self._snapshot.hold_ms(gang)
        exempt = frozenset(except_for)
        return tuple(at for at, each in enumerate(self.reservations) if each.at_ms < until and each.gang not in exempt)

    def bounds(self, gang: Gang, except_for: Iterable[str] = ()) -> Bounds:
        """What a gang may not use, given how long it is thought to run; ``except_for`` do not bind it."""
        binding = self._binding(gang, except_for)
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


def last_free(usable: int, free_now: int, busy: Iterable[Busy], need: int) -> int:
    """``need`` of the usable GPUs, those that become free last first, those free now last."""
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
