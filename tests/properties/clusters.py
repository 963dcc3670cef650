"""Hypothesis strategies for small clusters, partly used, and for demands on them."""

from __future__ import annotations

from hypothesis import strategies as st

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.cluster.topology import Topology
from tests.world import node_spec, open_capacity

LEVELS = ("zone", "rack")


@st.composite
def topologies(draw: st.DrawFn, levels: tuple[str, ...] = LEVELS) -> Topology:
    nodes = []
    for zone in range(draw(st.integers(1, 2))):
        for rack in range(draw(st.integers(1, 3))):
            for n in range(draw(st.integers(1, 3))):
                gpus, islands = draw(st.sampled_from([(2, 1), (4, 1), (4, 2), (8, 2), (8, 1)]))
                has = draw(st.sampled_from([{}, {"cpu_milli": 4000}, {"cpu_milli": 16_000}]))
                path = (f"z{zone}", f"r{rack}")[2 - len(levels) :]
                model = draw(st.sampled_from(["H100", "H100", "A100"]))
                name = f"z{zone}r{rack}n{n}"
                nodes.append(node_spec(name, gpus, path, islands, model, **has))
    return Topology(levels, nodes)


@st.composite
def capacities(draw: st.DrawFn, levels: tuple[str, ...] = LEVELS) -> Capacity:
    """A cluster in the middle of its life: some GPUs used, shared, claimed or sick, some nodes closed."""
    topology = draw(topologies(levels))
    capacity = open_capacity(topology)
    for n, node in enumerate(topology.nodes):
        full = (1 << len(node.gpus)) - 1
        if draw(st.integers(0, 9)) == 0:
            capacity.set_up(n, False, full)
        elif draw(st.integers(0, 5)) == 0:
            capacity.set_up(n, True, draw(st.integers(0, full)))
        used = capacity.free[n] & draw(st.integers(0, full))
        cpu = draw(st.sampled_from([0, 1000, 4000])) if node.amounts else 0
        if used:
            capacity.take(n, used, 0, amounts({"cpu_milli": cpu}) if cpu else ())
        if capacity.free[n] and draw(st.booleans()):
            capacity.take(n, capacity.free[n] & -capacity.free[n], draw(st.sampled_from([20_000, 60_000])), ())
        if draw(st.integers(0, 4)) == 0:
            capacity.claim(n, draw(st.integers(0, full)), ())
    return capacity


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Well-formed demands, as a submission would let them through."""
    gpus, tp = draw(st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (4, 4), (8, 1)]))
    chunk = max(1, tp // gpus)
    return Demand(
        task=TaskDemand(
            gpus=gpus,
            models=draw(st.sampled_from([(), (), ("H100",), ("A100",)])),
            amounts=draw(st.sampled_from([(), (), amounts({"cpu_milli": 1000})])),
        ),
        tasks=draw(st.integers(1, 4)) * chunk,
        spares=draw(st.sampled_from([0, 0, 0, 1])) * chunk,
        tp=tp,
        within=draw(st.sampled_from(["", "", "rack", "zone", "node"])),
        spread=draw(st.sampled_from(["", "", "", "rack", "node"])) if chunk == 1 else "",
        spread_max=draw(st.integers(1, 3)),
    )


@st.composite
def columns(draw: st.DrawFn, topology: Topology) -> list[int]:
    return [draw(st.integers(0, 5)) for _ in topology.nodes]
