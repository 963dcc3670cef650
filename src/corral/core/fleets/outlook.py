"""The cluster with the nodes that fleets may still add. Pure; these nodes do not exist yet.

All future nodes of a fleet have one shape and are in a domain of their own: their real topology is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Demand, amounts
from corral.core.cluster.slots import fits, slots
from corral.core.cluster.topology import NodeSpec, Topology
from corral.core.fleets.fleets import Fleet, Fleets, NodeShape
from corral.core.state import State

NODES_MAX = 500  # future nodes considered for one fleet
_ENOUGH = 1 << 40


def follows_demand(fleet: Fleet) -> bool:
    """Whether the number of nodes of a fleet follows demand."""
    return fleet.spec.nodes_min < fleet.spec.nodes_max and not fleet.is_recalled


def coming(state: State, fleet: Fleet) -> list[NodeSpec] | None:
    """The nodes that a fleet may still add; None if their resources are unknown."""
    there = sum(pilot.name in state.nodes for pilot in fleet.wanted)
    count = 0 if fleet.is_recalled else min(max(0, fleet.spec.nodes_max - there), NODES_MAX)
    shape = fleet.shape or _whole(fleet.spec.shape)
    if shape is None:
        return None if count else []
    path = (f"of {fleet.spec.name}",) * len(state.settings.levels)
    return [NodeSpec(f"{fleet.spec.name}+{n}", shape.gpus, shape.amounts, path) for n in range(1, count + 1)]


def _whole(stated: NodeShape | None) -> NodeShape | None:
    """A stated shape need not be complete: amounts that are not stated are unlimited until a node joins."""
    if stated is None:
        return None
    return NodeShape(stated.gpus, amounts({CPU_MILLI: _ENOUGH, MEMORY_MIB: _ENOUGH} | dict(stated.amounts)))


def with_nodes(state: State, more: Iterable[NodeSpec]) -> Topology:
    return Topology(state.settings.levels, [*(node.spec for node in state.nodes.values()), *more])


def could_come(state: State, fleets: Fleets) -> Callable[[Demand], bool]:
    """Whether a demand that the cluster cannot meet could be met with nodes that fleets may add."""

    def could(demand: Demand) -> bool:
        more: list[NodeSpec] = []
        for fleet in fleets.fleets.values():
            found = coming(state, fleet)
            if found is None:
                return True
            more += found
        if not more:
            return False
        topology = with_nodes(state, more)
        capacity = Capacity(topology)
        for n, node in enumerate(topology.nodes):
            capacity.set_up(n, True, (1 << len(node.gpus)) - 1)
        return fits(topology, slots(capacity, demand), demand, demand.smallest)

    return could
