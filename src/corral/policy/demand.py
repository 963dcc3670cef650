"""How many nodes fleets that follow demand should have now: as many as the waiting gangs would use, no more.

Utilisation is not considered. Waiting gangs are placed, in order and within quota, on free GPUs and on nodes that may
still come, with the same search that places gangs; nodes that a gang would use are wanted. Cheaper fleets come first.
Does not know providers, nor how long nodes take to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI
from corral.core.cluster.topology import NodeSpec, Topology
from corral.core.fleets.fleets import Fleet
from corral.core.fleets.outlook import coming, follows_demand, with_nodes
from corral.core.intake.commands import is_in_use
from corral.core.model import Gang
from corral.core.snapshot import Snapshot
from corral.core.state import node_total, seated
from corral.policy.placement.seating import find_seats

GANGS_MAX = 5_000  # considered at once


def needs(snapshot: Snapshot, fleets: Mapping[str, Fleet]) -> dict[str, int]:
    """By fleet: how many nodes it should have, including present ones."""
    found: dict[str, int] = {}
    waiting = _in_order(snapshot)
    following = [fleet for fleet in fleets.values() if follows_demand(fleet)]
    for fleet in sorted(following, key=lambda fleet: (fleet.spec.price_milli, fleet.spec.name)):
        more = coming(snapshot.state, fleet)
        if more is None:  # one is enough to learn their resources
            wanted = 1 if waiting else 0
        else:
            trial = _Trial(snapshot, more)
            waiting = trial.seat(waiting)
            wanted = len(trial.used_of_new()) + sum(
                pilot.name in trial.used or _is_busy(snapshot, pilot.name) for pilot in fleet.wanted
            )
        found[fleet.spec.name] = min(max(wanted, fleet.spec.nodes_min), fleet.spec.nodes_max)
    return found


def _in_order(snapshot: Snapshot) -> list[Gang]:
    state = snapshot.state
    entries = sorted(state.backlog.entries(), key=lambda entry: -entry.priority)
    gangs = [state.gangs[name] for entry in entries for name in entry]
    gangs.sort(key=lambda gang: (-gang.priority, gang.rank))
    return gangs[:GANGS_MAX]


def _is_busy(snapshot: Snapshot, node: str) -> bool:
    return node in snapshot.state.nodes and is_in_use(snapshot.state, node)


class _Trial:
    """The cluster as it is, and nodes that may come."""

    def __init__(self, snapshot: Snapshot, more: Sequence[NodeSpec]) -> None:
        self._snapshot, state = snapshot, snapshot.state
        self._more = tuple(spec.name for spec in more)
        self._topology: Topology = with_nodes(state, more)
        counted = state.recounted(self._topology)
        self._queues = state.queues.copy()
        self._queues.total = dict(self._queues.total)
        for spec in more:
            counted.set_up(self._topology.number[spec.name], True, (1 << len(spec.gpus)) - 1)
            for name, amount in node_total(spec).items():
                self._queues.total[name] = self._queues.total.get(name, 0) + amount
        self._capacity: Capacity = counted.copy()
        self.used: set[str] = set()

    def used_of_new(self) -> set[str]:
        return self.used & set(self._more)

    def seat(self, waiting: Sequence[Gang]) -> list[Gang]:
        """Gangs that fit neither here nor on nodes that may come. A gang over quota needs no node."""
        left: list[Gang] = []
        hopeless: set[object] = set()
        for gang in waiting:
            key = (gang.profile, gang.demand.smallest)
            if key in hopeless:
                left.append(gang)
                continue
            if not self._is_allowed(gang):
                continue
            if not self._sit(gang):
                hopeless.add(key)
                left.append(gang)
        return left

    def _is_allowed(self, gang: Gang) -> bool:
        charge = self._topology.least_charge(gang.demand, gang.demand.smallest)
        gpu_ms = charge.get(GPU_MILLI, 0) * self._snapshot.expected_ms(gang) // 1000
        return next(self._queues.shortfalls(gang.queue, gang.user, charge, gpu_ms, self._snapshot.now_ms), None) is None

    def _sit(self, gang: Gang) -> bool:
        """On present nodes, if possible; else also on nodes that may come."""
        demand, avoid = gang.demand, self._snapshot.avoid(gang)
        found = find_seats(self._capacity, demand, demand.smallest, (*avoid, *self._more))
        found = found or find_seats(self._capacity, demand, demand.smallest, avoid)
        if found is None:
            return False
        seats = found.everything
        self._capacity.take_all(seated(self._topology, seats), gang.amounts)
        self._capacity.keep()
        self.used.update(seat.node for seat in seats)
        self._queues.charge(
            gang.queue, gang.user, tuple(sorted(self._topology.least_charge(demand, demand.smallest).items())), 1
        )
        return True
