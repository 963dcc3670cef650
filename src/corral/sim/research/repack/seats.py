"""Which gangs start, are preempted and move: the common part of both ways to place all gangs in order.

A way of placing tries changes on the draft; this module turns the result into decisions. GPUs of a node are
interchangeable: a way of placing chooses how many of which node, and this module chooses which GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.core.cluster.resources import GPU_MILLI, Amounts, Demand, Seat
from corral.core.cluster.slots import gpu_slots
from corral.core.model import Cause, Gang, GangState
from corral.core.plan import MakeRoom, NoSeats, Place, Verdict, Victim
from corral.core.queues.quota import Shortfall
from corral.core.state import seated
from corral.policy.cycle.standard import Cycle
from corral.policy.placement.seating import spread_of, whole_gpus
from corral.policy.preemption.preemptor import claimed_as
from corral.sim.research.repack.ranks import Rank
from corral.sim.research.repack.waiting_order import entry_of, waiting_in_order

#: Seats with the spares at the end, and the number of seats before the spares.
Found = tuple[tuple[Seat, ...], int]

MOVABLE = (GangState.STARTING, GangState.RUNNING)


class Seats:
    """Which gangs start, are preempted and move: found as a what-if on the draft, then turned into decisions."""

    def __init__(self, cycle: Cycle, rank: Rank) -> None:
        self.cycle = cycle
        self.draft = cycle.draft
        self.state = cycle.state
        self.capacity, self.topology = cycle.draft.capacity, cycle.state.topology
        snapshot, served = cycle.snapshot, self.draft.served
        self.running = {gang.id: gang for gang in self.state.holders.values() if self._is_movable(gang)}
        here = (*self.running.values(), *self._returning())
        entries = [*waiting_in_order(snapshot, rank), *(entry_of(snapshot, rank, gang) for gang in here)]
        entries.sort()
        self.order = [entry[3] for entry in entries]
        if served:
            self.order = [gang for gang in self.order if gang.id not in served]
        self.coming: list[
            tuple[Gang, tuple[Seat, ...], int]
        ] = []  # gang -> its seats, and the number of seats before the spares
        self.leaving: dict[str, Gang] = {}
        self.moving: dict[str, Gang] = {}
        self._full: set[Demand] = set()  # demands that did not fit: later turns have less room
        self._refused: dict[str, Shortfall] = {}  # gangs for which quota was too small

    def _is_movable(self, gang: Gang) -> bool:
        return (
            gang.state in MOVABLE
            and gang.id not in self.draft.leaving
            and gang.id not in self.draft.served
            and self.cycle.snapshot.job(gang).spec.preemptible
        )

    def _returning(self) -> Iterator[Gang]:
        """Gangs that are still stopping and will want other seats at once."""
        yield from ()

    def seat(self) -> None:
        """Fill ``coming``, ``leaving`` and ``moving``; leave the draft as it was."""
        raise NotImplementedError

    def who_runs(self) -> Iterator[Gang]:
        """Gangs that hold seats after the plan, and keep them."""
        for gang in self.state.holders.values():
            if not self.draft.is_leaving(gang):
                yield gang
        for name in self.draft.served:
            if not self.state.gangs[name].holds_seats:
                yield self.state.gangs[name]

    def why(self, gang: Gang) -> Verdict:
        """Why a gang waits."""
        return self._refused.get(gang.id, NoSeats.NONE_FREE)

    # ---- trying out --------------------------------------------------------------------------------------------

    def _sit(self, gang: Gang, seats: Sequence[Seat], sign: int = 1) -> None:
        for n, seat in seated(self.topology, seats):
            change = self.capacity.take if sign > 0 else self.capacity.give_back
            change(n, seat.gpus, seat.slice_mib, gang.amounts)

    def _accept(self, gang: Gang, seats: tuple[Seat, ...], size: int) -> None:
        """Place a gang: it holds the seats, and its queue is charged for them, until all gangs had a turn."""
        self._sit(gang, seats)
        charge, _ = self._charge(gang, seats)
        self.draft.queues.charge(gang.queue, gang.user, charge, 1)
        self.draft.count_next_run(gang, charge)
        self.coming.append((gang, seats, size))

    def _charge(self, gang: Gang, seats: Sequence[Seat]) -> tuple[Amounts, int]:
        charge = self.state.charge_for(gang.demand.task, seats)
        return charge, dict(charge).get(GPU_MILLI, 0) * self.cycle.snapshot.expected_ms(gang) // 1000

    def _may_have(self, gang: Gang, seats: Sequence[Seat]) -> bool:
        charge, gpu_ms = self._charge(gang, seats)
        queues, now_ms = self.draft.queues, self.cycle.now_ms
        short = next(queues.shortfalls(gang.queue, gang.user, dict(charge), gpu_ms, now_ms), None)
        if short is not None:
            self._refused[gang.id] = short
        return short is None

    # ---- deciding ----------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Waiting gangs are placed on free seats, and claim those of preempted gangs; then these are preempted."""
        for gang, planned, size in self.coming:
            seats = self._seats_of_node(gang, planned)
            if seats is None:
                continue
            if planned[0].slice_mib == gang.demand.task.slice_mib and self._are_free(gang, seats):
                self.draft.place(gang, seats, self._charge(gang, seats)[0])
                spread = spread_of(self.topology, seats)
                place = Place(gang.id, gang.attempt + 1, seats[:size], seats[size:], spread)
                self.cycle.decisions.append(place)
            elif not planned[0].slice_mib:
                self._make_room(gang, seats)

    def _seats_of_node(self, gang: Gang, planned: Sequence[Seat]) -> tuple[Seat, ...] | None:
        """As many GPUs of each node as planned: free ones if there are enough, else also those of preempted gangs."""
        demand, capacity = claimed_as(gang.demand), self.capacity
        if planned[0].slice_mib or not planned[0].gpus:
            return tuple(planned)
        found: list[Seat] = []
        accepted = self.topology.accepted(demand.task)
        counts: dict[int, int] = {}
        for n, _ in seated(self.topology, planned):
            counts[n] = counts.get(n, 0) + 1
        for n, count in counts.items():
            usable = capacity.free[n]
            if gpu_slots(self.topology, demand, n, usable & accepted[self.topology.kind[n]]) < count:
                usable |= self._left_on(n) & capacity.up[n] & ~capacity.claimed[n]
            usable &= accepted[self.topology.kind[n]]
            if gpu_slots(self.topology, demand, n, usable) < count:
                return None
            found += whole_gpus(self.topology, demand, n, count, usable)
        return tuple(found)

    def _left_on(self, n: int) -> int:
        """The GPUs of a node whose gangs are all stopping, or will be preempted."""
        node = self.topology.nodes[n].name
        leaving = staying = 0
        for name in self.state.tenants[node]:
            gang = self.state.gangs[name]
            held = 0
            for seat in gang.all_seats:
                held |= seat.gpus if seat.node == node else 0
            if name in self.leaving or name in self.moving or self.draft.is_leaving(gang):
                leaving |= held
            else:
                staying |= held
        for _, seat in self.draft.seated.get(node, ()):
            staying |= seat.gpus
        return leaving & ~staying

    def _are_free(self, gang: Gang, seats: Sequence[Seat]) -> bool:
        """Whether it could be placed on all of these seats now."""
        capacity, mark = self.capacity, self.capacity.mark()
        fits = True
        for n, seat in seated(self.topology, seats):
            shared = capacity.vram.get((n, seat.gpus.bit_length() - 1)) if seat.slice_mib else None
            is_free = not seat.gpus & ~capacity.free[n] if shared is None else shared >= seat.slice_mib
            fits = fits and is_free and (not gang.amounts or capacity.tasks_by_amounts(n, gang.amounts, 1) == 1)
            if not fits:
                break
            capacity.take(n, seat.gpus, seat.slice_mib, gang.amounts)
        capacity.undo(mark)
        return fits

    def _make_room(self, gang: Gang, seats: tuple[Seat, ...]) -> None:
        told = [
            victim
            for victim in (*self.leaving.values(), *self.moving.values())
            if victim.id not in self.draft.leaving and _is_in_the_way(victim, seats, bool(gang.amounts))
        ]
        if self.draft.queues.kept_back and not self._may_have_without(gang, seats, told):
            return  # a preempted gang may belong to a queue that does not lend what it no longer uses
        for victim in told:
            self.draft.evict(victim)
        self.draft.claim(gang, seats, self.state.charge_for(gang.demand.task, seats))
        price = self.cycle.snapshot.price_gpu_ms
        victims = tuple(Victim(v.id, v.attempt, self._cause(v), price(v)) for v in told)
        self.cycle.decisions.append(MakeRoom(gang.id, gang.attempt + 1, seats, victims))

    def _may_have_without(self, gang: Gang, seats: Sequence[Seat], gone: Sequence[Gang]) -> bool:
        mark = self.draft.mark()
        for each in gone:
            self.draft.queues.charge(each.queue, each.user, each.charged, -1)
        found = self._may_have(gang, seats)
        self.draft.undo(mark)
        return found

    def _cause(self, gang: Gang) -> Cause:
        return Cause.MOVE if gang.id in self.moving else Cause.PRIORITY


def _is_in_the_way(gang: Gang, seats: Sequence[Seat], by_amounts: bool) -> bool:
    wanted: dict[str, int] = {}
    for seat in seats:
        wanted[seat.node] = wanted.get(seat.node, 0) | seat.gpus
    return any(seat.node in wanted and (by_amounts or seat.gpus & wanted[seat.node]) for seat in gang.all_seats)
