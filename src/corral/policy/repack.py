"""Policies that look at everyone anew: all who run and all who wait, sorted together; whoever does not fit waits.

The classics of the literature: shortest remaining time, shortest remaining service, least attained service. They
preempt freely and believe that switching is cheap; use them to compare, or where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from corral.core.cluster.resources import GPU_MILLI, Seat
from corral.core.model import Cause, Gang, GangState
from corral.core.plan import MakeRoom, Place, Plan, Victim
from corral.core.snapshot import Snapshot
from corral.policy.placement import Seating, find_seats, spread_of
from corral.policy.preemption import claimed_as
from corral.policy.standard import Cycle, Parts

Rank = Callable[[Snapshot, Gang], tuple[Any, ...]]


class Repack:
    """Serve in order of rank; a gang of lower rank that is in the way makes room."""

    def __init__(self, rank: Rank, parts: Parts) -> None:
        self.rank, self.parts = rank, parts

    def __call__(self, snapshot: Snapshot) -> Plan:
        cycle = Cycle(snapshot, self.parts)
        cycle.keep_promises()
        cycle.repair()
        cycle.drain()
        _Pass(cycle, self.rank).serve()
        return Plan(snapshot.now_ms, tuple(cycle.decisions))


class _Pass:
    def __init__(self, cycle: Cycle, rank: Rank) -> None:
        self.cycle, self.draft, self.state = cycle, cycle.draft, cycle.state
        snapshot = cycle.snapshot
        movable = (GangState.STARTING, GangState.RUNNING)
        running = [
            gang
            for gang in self.state.holders.values()
            if gang.state in movable and not self.draft.is_leaving(gang) and gang.id not in self.draft.served
        ]
        waiting = [
            self.state.gangs[name]
            for line in self.state.backlog.lines()
            for name in line
            if name not in self.draft.served
        ]
        self.running = {gang.id: gang for gang in running}
        self.order = sorted([*running, *waiting], key=lambda gang: (*rank(snapshot, gang), gang.rank))

    def serve(self) -> None:
        """First find who stays and who comes, as if nobody sat yet; then say who leaves for whom."""
        capacity = self.draft.capacity
        mark = capacity.mark()
        for gang in self.running.values():
            self._move(gang, back=True)
        coming: list[Gang] = []
        leaving: dict[str, Gang] = {}
        for gang in self.order:
            if gang.id in self.running:
                if self._could_stay(gang):
                    self._move(gang, back=False)
                else:
                    leaving[gang.id] = gang
            elif self._seat(gang):
                coming.append(gang)
        capacity.undo(mark)
        self._decide(coming, leaving)

    def _move(self, gang: Gang, back: bool) -> None:
        capacity = self.draft.capacity
        for seat in gang.all_seats:
            n = capacity.topology.number[seat.node]
            change = capacity.give_back if back else capacity.take
            change(n, seat.gpus, seat.slice_mib, gang.amounts)

    def _could_stay(self, gang: Gang) -> bool:
        """Whether its seats are still free, or it is on a node where nothing new is placed and so nobody took them."""
        capacity = self.draft.capacity
        number = capacity.topology.number
        return all(
            not seat.gpus & (capacity.used[number[seat.node]] | capacity.claimed[number[seat.node]])
            for seat in gang.all_seats
        )

    def _find(self, gang: Gang) -> Seating | None:
        """Seats for the largest size that its queue may have and that fits."""
        for size in gang.demand.sizes():
            if self.cycle.shortfall(gang, size) is None:
                found = find_seats(
                    self.draft.capacity,
                    gang.demand,
                    size,
                    self.cycle.snapshot.avoid(gang),
                    scorer=self.cycle.parts.scorer,
                )
                if found is not None:
                    return found
        return None

    def _seat(self, gang: Gang) -> bool:
        found = self._find(gang)
        if found is None:
            return False
        for seat in found.everything:
            n = self.draft.capacity.topology.number[seat.node]
            self.draft.capacity.take(n, seat.gpus, seat.slice_mib, gang.amounts)
        return True

    def _decide(self, coming: list[Gang], leaving: dict[str, Gang]) -> None:
        """Give each newcomer free seats if there are some, else seats of those who leave."""
        for gang in coming:
            found = self._find(gang)
            if found is not None:
                charge = self.state.charge_for(gang.demand.task, found.everything)
                gpu_ms = dict(charge).get(GPU_MILLI, 0) * self.cycle.snapshot.expected_ms(gang) // 1000
                self.draft.place(gang, found.everything, charge, gpu_ms)
                spread = spread_of(self.state.topology, found.everything)
                self.cycle.decisions.append(Place(gang.id, gang.attempt + 1, found.seats, found.spares, spread))
            else:
                self._take_over(gang, leaving)

    def _take_over(self, gang: Gang, leaving: dict[str, Gang]) -> None:
        """Let those who leave anyway leave for this gang, the last who came first, until it fits."""
        capacity, cycle = self.draft.capacity, self.cycle
        demand, size = claimed_as(gang.demand), gang.demand.smallest
        mark = capacity.mark()
        victims: list[Gang] = []
        found = None
        for victim in sorted(leaving.values(), key=lambda each: -each.rank):
            self._move(victim, back=True)
            victims.append(victim)
            found = find_seats(capacity, demand, size, self.cycle.snapshot.avoid(gang))
            if found is not None:
                break
        capacity.undo(mark)
        if found is None or cycle.shortfall(gang, size) is not None:
            return
        needed = [victim for victim in victims if _is_in_the_way(victim, found.everything, bool(gang.amounts))]
        for victim in needed:
            del leaving[victim.id]
            self.draft.evict(victim)
        self.draft.claim(gang, found.everything, self.state.charge_for(gang.demand.task, found.everything))
        told = tuple(Victim(v.id, v.attempt, Cause.PRIORITY, cycle.snapshot.price_gpu_ms(v)) for v in needed)
        cycle.decisions.append(MakeRoom(gang.id, gang.attempt + 1, found.everything, told))


def _is_in_the_way(gang: Gang, seats: Sequence[Seat], by_amounts: bool) -> bool:
    wanted: dict[str, int] = {}
    for seat in seats:
        wanted[seat.node] = wanted.get(seat.node, 0) | seat.gpus
    return any(seat.node in wanted and (by_amounts or seat.gpus & wanted[seat.node]) for seat in gang.all_seats)


def by_remaining_time(snapshot: Snapshot, gang: Gang) -> tuple[Any, ...]:
    return (snapshot.remaining_ms(gang),)


def by_remaining_service(snapshot: Snapshot, gang: Gang) -> tuple[Any, ...]:
    gpus = gang.demand.charge(gang.demand.tasks).get(GPU_MILLI, 0)
    return (snapshot.remaining_ms(gang) * gpus,)


class ByAttainedService:
    """Least attained service in two dimensions (GPUs x time), in few discrete queues; in a queue whoever was first."""

    def __init__(self, limits_gpu_ms: tuple[int, ...] = (3_250_000, 7_200_000)) -> None:
        self.limits_gpu_ms = limits_gpu_ms

    def __call__(self, snapshot: Snapshot, gang: Gang) -> tuple[Any, ...]:
        served = snapshot.served_gpu_ms(gang)
        return (sum(served >= limit for limit in self.limits_gpu_ms),)
