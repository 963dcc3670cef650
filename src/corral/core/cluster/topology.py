"""The topology of the cluster: nodes, their GPUs, and the tree of domains above them. Immutable and shared.

Nodes are numbered along the tree, so that every domain is a contiguous range of node numbers, neighbours in
number are neighbours in the network, and a sum over a domain is a difference of two prefix sums.
Knows nothing about what is in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from corral.core.cluster.resources import GPU_MILLI, Amounts, Demand, Gpu, TaskDemand

#: A level of this name is the reach of NVLink across nodes.
NVLINK_LEVEL = "nvlink"
CLUSTER = "cluster"


class NodeSpec(Struct, frozen=True, gc=False):
    """A node: its GPUs in slot order, its other amounts, its path of domain names, outermost first, and the address at
    which other nodes reach it (empty: its name)."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    amounts: Amounts = ()
    path: tuple[str, ...] = ()
    address: str = ""


class Domain(Struct, frozen=True, gc=False):
    """A domain: the nodes numbered ``lo`` up to but not including ``hi``. Level 0 is the whole cluster."""

    number: int
    name: str
    level: int
    lo: int
    hi: int
    parent: int


class Topology:
    """Levels, numbered nodes and domains. ``levels[0]`` is the cluster itself; nodes are below the last level."""

    def __init__(self, levels: Sequence[str], nodes: Iterable[NodeSpec]) -> None:
        self.levels: tuple[str, ...] = (CLUSTER, *levels)
        self.nvlink_level: int | None = self.level_index(NVLINK_LEVEL)
        self.nodes: tuple[NodeSpec, ...] = tuple(sorted(nodes, key=_along_the_tree))
        self.number: dict[str, int] = {node.name: n for n, node in enumerate(self.nodes)}
        self.domains: tuple[Domain, ...] = tuple(_domains(self.levels, self.nodes))
        self.by_level: tuple[tuple[Domain, ...], ...] = tuple(
            tuple(d for d in self.domains if d.level == level) for level in range(len(self.levels))
        )
        self.children: tuple[tuple[Domain, ...], ...] = self._domains_below()
        self.above: tuple[tuple[int, ...], ...] = self._domains_above()
        self.layouts, self.kind = _kinds(self.nodes)
        self.gpus_max: int = max((len(node.gpus) for node in self.nodes), default=0)
        self._accepted: dict[TaskDemand, tuple[int, ...]] = {}
        self._offered: dict[TaskDemand, tuple[int, str]] = {}
        self._islands: tuple[tuple[int, ...], ...] = tuple(_islands(layout) for layout in self.layouts)

    def level_index(self, level: str) -> int | None:
        """The index of a named level; None if there is no such level."""
        return self.levels.index(level) if level in self.levels else None

    def domain_of(self, node: int, level: int) -> Domain:
        return self.domains[self.above[node][level]]

    def accepted(self, task: TaskDemand) -> tuple[int, ...]:
        """For each kind of node, the mask of the GPUs that the task may use; 0 if none."""
        known = self._accepted.get(task)
        if known is None:
            known = tuple(sum(1 << i for i, gpu in enumerate(layout) if task.accepts(gpu)) for layout in self.layouts)
            self._accepted[task] = known
        return known

    def least_charge(self, demand: Demand, size: int) -> dict[str, int]:
        """The least charge of a queue for this many tasks and the spares, wherever they are placed.

        A slice counts by its share of the largest GPU it may use; the model counts if only one is possible.
        """
        charge, task = demand.charge(size), demand.task
        if task.wants_gpu and (task.slice_mib or len(task.models) != 1):
            vram_mib, model = self._offer(task)
            if task.slice_mib and vram_mib:
                charge[GPU_MILLI] = task.slice_mib * 1000 // vram_mib * (size + demand.spares)
            if model:
                charge[f"{GPU_MILLI}:{model}"] = charge[GPU_MILLI]
        return charge

    def _offer(self, task: TaskDemand) -> tuple[int, str]:
        """The VRAM of the largest GPU that a task may use, and the model if only one is possible."""
        known = self._offered.get(task)
        if known is None:
            gpus = [gpu for layout in self.layouts for gpu in layout if task.accepts(gpu)]
            models = {gpu.model for gpu in gpus}
            known = (max((gpu.vram_mib for gpu in gpus), default=0), models.pop() if len(models) == 1 else "")
            self._offered[task] = known
        return known

    def islands(self, node: int) -> tuple[int, ...]:
        """The NVLink islands of a node, as masks of its GPUs."""
        return self._islands[self.kind[node]]

    def _domains_below(self) -> tuple[tuple[Domain, ...], ...]:
        below: list[list[Domain]] = [[] for _ in self.domains]
        for domain in self.domains[1:]:
            below[domain.parent].append(domain)
        return tuple(tuple(domains) for domains in below)

    def _domains_above(self) -> tuple[tuple[int, ...], ...]:
        above: list[list[int]] = [[] for _ in self.nodes]
        for level in self.by_level:
            for domain in level:
                for n in range(domain.lo, domain.hi):
                    above[n].append(domain.number)
        return tuple(tuple(path) for path in above)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key by which ``a2`` comes before ``a10``."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def _along_the_tree(node: NodeSpec) -> tuple[object, ...]:
    return (tuple((natural(name), name) for name in node.path), natural(node.name), node.name)


def _domains(levels: Sequence[str], nodes: Sequence[NodeSpec]) -> Iterable[Domain]:
    found: list[Domain] = [Domain(0, CLUSTER, 0, 0, len(nodes), 0)]
    numbers: dict[tuple[str, ...], int] = {(): 0}
    for level in range(1, len(levels)):
        start = 0
        for n in range(1, len(nodes) + 1):
            path = nodes[start].path[:level]
            if n < len(nodes) and nodes[n].path[:level] == path:
                continue
            numbers[path] = len(found)
            found.append(Domain(len(found), "/".join(path), level, start, n, numbers[path[:-1]]))
            start = n
    return found


def _kinds(nodes: Sequence[NodeSpec]) -> tuple[tuple[tuple[Gpu, ...], ...], tuple[int, ...]]:
    """Nodes with the same devices in the same slots are of one kind; there are few kinds and many nodes."""
    layouts: dict[tuple[Gpu, ...], int] = {}
    kinds = []
    for node in nodes:
        layout = tuple(Gpu("", gpu.model, gpu.vram_mib, gpu.island) for gpu in node.gpus)
        kinds.append(layouts.setdefault(layout, len(layouts)))
    return tuple(layouts), tuple(kinds)


def _islands(layout: Sequence[Gpu]) -> tuple[int, ...]:
    masks: dict[int, int] = {}
    for i, gpu in enumerate(layout):
        masks[gpu.island] = masks.get(gpu.island, 0) | 1 << i
    return tuple(masks.values())
