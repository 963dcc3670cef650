"""Place waiting gangs in order: on free seats, or on those of gangs of lower rank. Running gangs stay or are preempted.

Does not know decisions: it finds which gangs start and which are preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.core.cluster.resources import Demand, Seat
from corral.core.model import Gang
from corral.core.state import seated
from corral.policy.placement.seating import find_seats
from corral.policy.preemption.preemptor import claimed_as
from corral.sim.research.repack.seats import Found, Seats


class InPlace(Seats):
    """Running gangs stay on their nodes, or are preempted."""

    def seat(self) -> None:
        """Each waiting gang in its turn takes free seats, or those of gangs of lower rank, the lowest first.

        If all GPUs are on one node this is equivalent to placing all gangs in an empty cluster, in order: a gang that
        was removed for another has its own turn later, and stays if enough is left then.
        """
        running = self.running
        full = self._full
        leaving = self.leaving
        mark = self.draft.mark()
        turns = {gang.id: turn for turn, gang in enumerate(self.order) if gang.id in running}
        self._below = [running[name] for name in turns]  # placed gangs; the last is removed first
        self._sits = {gang.id: gang.all_seats for gang in self._below}  # their nodes: GPUs are interchangeable
        for turn, gang in enumerate(self.order):
            if gang.id in leaving:
                if self._stay(gang):
                    del leaving[gang.id]
            elif gang.profile.demand not in full and gang.id not in running:
                first = len(self._below)
                while first and turns[self._below[first - 1].id] > turn:
                    first -= 1
                if not self._come(gang, first):
                    full.add(gang.demand)
        self.draft.undo(mark)

    def _come(self, gang: Gang, first: int) -> bool:
        """Place a waiting gang; those from ``first`` on may be removed for it. False: there is no room."""
        found = self._find(gang, gang.demand, gang.demand.sizes())
        risen: list[Gang] = []
        mark = self.capacity.mark()
        if found is None:
            found = self._raise_others(gang, self._below[first:], risen)
        if found is None:
            self.capacity.undo(mark)
            return self.cycle.snapshot.is_choosy(gang)
        del self._below[len(self._below) - len(risen) :]
        if self._may_have(gang, found[0]):
            self._accept(gang, *found)
        for each in reversed(risen):  # gangs that need not be removed are placed again, the highest rank first
            if self._stay(each):
                self._below.append(each)
            else:
                self.leaving[each.id] = each
        return True

    def _find(self, gang: Gang, demand: Demand, sizes: Iterable[int]) -> Found | None:
        """Seats for the largest of these sizes that fits and is within quota; if none is, any that fits."""
        found = None
        for size in sizes:
            avoid = self.cycle.snapshot.avoid(gang)
            seating = find_seats(self.capacity, demand, size, avoid, scorer=self.cycle.parts.scorer)
            if seating is not None:
                found = seating.everything, size
                if size == demand.smallest or self._may_have(gang, found[0]):
                    return found
        return found

    def _raise_others(self, gang: Gang, others: Sequence[Gang], risen: list[Gang]) -> Found | None:
        """Remove others, the last first, until there is room for its smallest size; None if there never is."""
        demand = claimed_as(gang.demand)
        wanted = demand.task.gpus * (demand.smallest + demand.spares)
        counts = [sum([seat.gpus.bit_count() for seat in self._sits[each.id]]) for each in others]
        free = sum([mask.bit_count() for mask in self.capacity.free])
        if free + sum(counts) < wanted:
            return None
        for each, count in zip(reversed(others), reversed(counts), strict=True):
            self._sit(each, self._sits[each.id], -1)
            risen.append(each)
            free += count
            if free >= wanted and (found := self._find(gang, demand, (demand.smallest,))) is not None:
                return found
        return None

    def _stay(self, gang: Gang) -> bool:
        """Place it again on its nodes, if enough is left there; a closed node takes no other gang."""
        capacity, accepted = self.capacity, self.topology.accepted(gang.demand.task)
        mark, found = capacity.mark(), []
        for n, seat in seated(self.topology, gang.all_seats):
            gpus = seat.gpus
            if not self._is_left(n, seat):
                others = capacity.free[n] & accepted[self.topology.kind[n]]
                if seat.slice_mib or others.bit_count() < gpus.bit_count():
                    break
                gpus = _lowest(others, gpus.bit_count())
            if gang.amounts and any((capacity.left[name][n] or 0) < each for name, each in gang.amounts):
                break
            capacity.take(n, gpus, seat.slice_mib, gang.amounts)
            found.append(Seat(seat.node, gpus, seat.slice_mib))
        else:
            self._sits[gang.id] = tuple(found)
            return True
        capacity.undo(mark)
        return False

    def _is_left(self, n: int, seat: Seat) -> bool:
        capacity = self.capacity
        shared = capacity.vram.get((n, seat.gpus.bit_length() - 1)) if seat.slice_mib else None
        if shared is not None:
            return shared >= seat.slice_mib and not seat.gpus & capacity.claimed[n]
        return not seat.gpus & (capacity.used[n] | capacity.claimed[n])


def _lowest(mask: int, count: int) -> int:
    picked = 0
    for _ in range(count):
        picked |= mask & -mask
        mask &= mask - 1
    return picked
