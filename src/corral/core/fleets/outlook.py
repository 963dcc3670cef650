"""What the cluster would be with the nodes that fleets may still bring. Pure; nothing of it is there.

Nodes that may come are all of one shape in a fleet, and stand in one place of their own: where an engine will put them
nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Demand, amounts
from corral.core.cluster.slots import fits, slots
from corral.core.cluster.topology import NodeSpec, Topology
from corral.core.fleets.fleets import Fleet, Fleets, NodeShape
from corral.core.state import State

NODES_MAX = 500  # looked at of a fleet at once
_ENOUGH = 1 << 40


def coming(state: State, fleet: Fleet) -> list[NodeSpec] | None:
    """The nodes that a fleet may still bring; None: nobody knows what they are like."""
    there = sum(pilot.name in state.nodes for pilot in fleet.wanted)
    count = 0 if fleet.is_recalled else min(max(0, fleet.spec.nodes_max - there), NODES_MAX)
    shape = fleet.shape or _whole(fleet.spec.shape)
    if shape is None:
        return None if count else []
    path = (f"of {fleet.spec.name}",) * len(state.settings.levels)
    return [NodeSpec(f"{fleet.spec.name}+{n}", shape.gpus, shape.amounts, path) for n in range(1, count + 1)]


def _whole(stated: NodeShape | None) -> NodeShape | None:
    """What a person says of a node is not all that it has: of what is not said there is enough, until one joins."""
    if stated is None:
        return None
    return NodeShape(stated.gpus, amounts({CPU_MILLI: _ENOUGH, MEMORY_MIB: _ENOUGH} | dict(stated.amounts)))


def with_nodes(state: State, more: Iterable[NodeSpec]) -> Topology:
    return Topology(state.settings.levels, [*(node.spec for node in state.nodes.values()), *more])


def could_come(state: State, fleets: Fleets) -> Callable[[Demand], bool]:
    """Whether a demand that the cluster cannot meet could be met by nodes that fleets may bring."""

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
