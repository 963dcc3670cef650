"""Place all gangs in order in an empty cluster, on the first nodes that fit. Gangs on other nodes move.

Does not know decisions, except the one that moves a gang without a beneficiary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.slots import could_take, slots
from corral.core.model import Cause, Gang, GangState
from corral.core.plan import Behind, Evict, Verdict
from corral.core.queues.quota import Shortfall
from corral.core.state import seated
from corral.policy.placement.seating import FREE, find_seats, seats_on
from corral.sim.research.repack.seats import Found, Seats


class Migration(Seats):
    """All gangs are placed again; gangs on other nodes move."""

    def _returning(self) -> Iterator[Gang]:
        for gang in self.state.stopping.values():
            if gang.eviction is not None and gang.eviction.cause is Cause.MOVE and not gang.claim:
                yield gang

    def seat(self) -> None:
        mark = self.draft.mark()
        for gang in self.state.holders.values():
            if self.draft.is_leaving(gang):
                self._sit(gang, gang.all_seats, -1)
                for n, _ in seated(self.topology, gang.all_seats):
                    self.capacity.pledge(n, gang.amounts, 1)
            elif gang.id in self.running and self._is_at_home(gang):
                self._sit(gang, gang.all_seats, -1)
            else:
                self.running.pop(gang.id, None)  # on nodes that take nothing new, running gangs continue
        for gang in self.order:
            if gang.id in self.running:
                self._reseat(gang)
            elif gang.profile.demand not in self._full:
                self._come(gang)
        self.draft.undo(mark)

    def _reseat(self, gang: Gang) -> None:
        found = self._find(gang, (len(gang.seats),))
        if found is None:
            self.leaving[gang.id] = gang
            return
        self._sit(gang, found[0])
        if not _are_same_nodes(found[0], gang.all_seats):
            self.moving[gang.id] = gang

    def _come(self, gang: Gang) -> None:
        """A waiting gang, or one that is stopping and will restart on these seats."""
        if gang.state is GangState.WAITING:
            found = self._find(gang, gang.demand.sizes())
            if found is not None:
                self._accept(gang, *found)
        elif gang.state is GangState.STOPPING:
            found = self._find(gang, (len(gang.seats),))
            if found is not None:
                self._sit(gang, found[0])

    def why(self, gang: Gang) -> Verdict:
        """Those of a higher rank were placed first, also gangs that hold seats or will restart on others."""
        verdict, first = super().why(gang), self.order[0]
        return verdict if isinstance(verdict, Shortfall) or first is gang else Behind(first.id)

    def _is_at_home(self, gang: Gang) -> bool:
        up, open_ = self.capacity.up, self.capacity.open
        return all(open_[n] and not seat.gpus & ~up[n] for n, seat in seated(self.topology, gang.all_seats))

    def _find(self, gang: Gang, sizes: Iterable[int]) -> Found | None:
        if gang.demand in self._full:
            return None
        avoid, has_room = self.cycle.snapshot.avoid(gang), False
        for size in sizes:
            seats = _first_fit(self.capacity, gang.demand, size, avoid)
            if seats is not None and (gang.holds_seats or self._may_have(gang, seats)):
                return seats, size
            has_room = has_room or seats is not None
        if not has_room and not avoid and not gang.demand.is_elastic:
            self._full.add(gang.demand)
        return None

    def decide(self) -> None:
        super().decide()
        for gang in (*self.moving.values(), *self.leaving.values()):
            if gang.id not in self.draft.leaving:
                self.draft.evict(gang)
                self.cycle.decisions.append(Evict(gang.id, gang.attempt, self._cause(gang)))


def _first_fit(capacity: Capacity, demand: Demand, size: int, avoid: Sequence[str]) -> tuple[Seat, ...] | None:
    """Seats on the first nodes that fit, by number. With topology constraints, the usual search."""
    if not could_take(capacity, demand, size):
        return None
    if not demand.task.gpus or demand.tp > 1 or demand.within or demand.spread:
        found = find_seats(capacity, demand, size, avoid)
        return None if found is None else found.everything
    wanted = size + demand.spares
    counts: list[tuple[int, int]] = []
    for n, room in enumerate(slots(capacity, demand, avoid)):
        if room:
            counts.append((n, min(room, wanted)))
            wanted -= counts[-1][1]
            if not wanted:
                return seats_on(capacity, demand, counts, FREE)
    return None


def _are_same_nodes(some: Sequence[Seat], others: Sequence[Seat]) -> bool:
    return sorted([seat.node for seat in some]) == sorted([seat.node for seat in others])
