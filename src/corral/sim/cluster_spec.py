"""The cluster of a simulation: from a short description, or from the workload's own.

``8x8`` is eight nodes of eight GPUs; ``4x8:H100+2x4:A100`` are two kinds; ``count:96`` is one node with 96 GPUs, for
policies of the literature that only count. ``rack=8,spine=4`` puts eight nodes into a rack and four racks under a
spine. Does not know jobs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Gpu, amounts
from corral.core.cluster.slots import NODE_LEVEL
from corral.core.cluster.topology import CLUSTER, NodeSpec
from corral.core.intake.refusal import Refusal
from corral.sim.traces.trace import TraceNodes

GPUS_MAX = 1_000_000
VRAM_MIB = 80_000  # memory of a GPU if none is given
_PART = re.compile(r"(\d+)x(\d+)(?::([\w.+-]+))?")
_COUNT = re.compile(r"count:(\d+)")


class ClusterSpec(Struct, frozen=True):
    """Nodes and the levels of the topology above them, outermost first."""

    nodes: tuple[NodeSpec, ...]
    levels: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)

    @property
    def gpus_a_node(self) -> int:
        """GPUs of the largest node."""
        return max((len(node.gpus) for node in self.nodes), default=0)


def parse_cluster(text: str, topology: str = "") -> ClusterSpec | Refusal:
    """The cluster that a description names."""
    levels = parse_levels(topology)
    if isinstance(levels, Refusal):
        return levels
    counted = _COUNT.fullmatch(text)
    if counted is not None:
        parts: list[TraceNodes] = [TraceNodes(1, int(counted[1]))]
    else:
        parts = []
        for part in text.split("+"):
            found = _PART.fullmatch(part.strip())
            if found is None:
                hint = "for example 8x8 (8 nodes of 8 GPUs), 4x8:H100+2x4:A100, or count:96"
                return Refusal("bad_nodes", f"{part!r} does not describe nodes", hint, "nodes")
            parts.append(TraceNodes(int(found[1]), int(found[2]), found[3] or ""))
    if not all(part.count and part.gpus for part in parts):
        return Refusal("bad_nodes", f"{text!r} has nodes without GPUs, or no nodes", field="nodes")
    if sum(part.count * part.gpus for part in parts) > GPUS_MAX:
        return Refusal("bad_nodes", f"{text!r} has more than {GPUS_MAX:,} GPUs", "simulate a part of it", "nodes")
    return build_cluster(parts, levels)


def parse_levels(topology: str) -> list[tuple[str, int]] | Refusal:
    """Levels as (name, number of children), innermost first."""
    levels: list[tuple[str, int]] = []
    for part in topology.split(",") if topology else ():
        name, _, size = part.partition("=")
        if not name.strip().isidentifier() or not size.isdecimal() or int(size) < 1:
            hint = "innermost first, for example rack=8,spine=4"
            return Refusal("bad_topology", f"{part!r} does not describe a level", hint, "topology")
        levels.append((name.strip(), int(size)))
    names = [name for name, _ in levels]
    reserved = next((name for name in names if name in (CLUSTER, NODE_LEVEL) or names.count(name) > 1), None)
    if reserved is not None:
        why = (
            f"{reserved!r} cannot be a level"
            if names.count(reserved) == 1
            else f"the level {reserved!r} is given twice"
        )
        return Refusal("bad_topology", why, "give each level between node and cluster a different name", "topology")
    return levels


def build_cluster(parts: Sequence[TraceNodes], levels: Sequence[tuple[str, int]] = ()) -> ClusterSpec:
    """Nodes in the order given; ``levels`` are (name, number of children), innermost first."""
    nodes: list[NodeSpec] = []
    total = sum(part.count for part in parts)
    digits = len(str(max(0, total - 1)))
    for part in parts:
        known = {CPU_MILLI: part.cpu_milli, MEMORY_MIB: part.memory_mib}
        has = amounts({name: amount for name, amount in known.items() if amount})
        for place in range(part.count):
            number = len(nodes)
            name = part.names[place] if part.names else f"n{number:0{digits}}"
            gpus = tuple(Gpu(f"{name}-{i}", part.model or "GPU", part.vram_mib or VRAM_MIB) for i in range(part.gpus))
            nodes.append(NodeSpec(name, gpus, has, _path(number, levels)))
    return ClusterSpec(tuple(nodes), tuple(name for name, _ in reversed(levels)))


def _path(number: int, levels: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    path = []
    for name, size in levels:
        number //= size
        path.append(f"{name}{number}")
    return tuple(reversed(path))
