"""Pools: gangs that want the same types of nodes compete with each other; one pool never blocks another."""

from __future__ import annotations

from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.cluster.topology import Topology

Pool = tuple[bool, ...]  # by type of node, whether it is suitable


class Pools:
    """The pools of one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: dict[TaskDemand, Pool] = {}

    def of(self, demand: Demand) -> Pool:
        pool = self._known.get(demand.task)
        if pool is None:
            pool = self._known[demand.task] = tuple([mask != 0 for mask in self._topology.accepted(demand.task)])
        return pool

    def overlap(self, one: Demand, other: Demand) -> bool:
        """Whether some nodes may be used by both."""
        return any(a and b for a, b in zip(self.of(one), self.of(other), strict=True))

    def gpu_milli(self, task: TaskDemand) -> int:
        """The GPUs of the pool of a task, in thousandths."""
        usable = [1000 * mask.bit_count() for mask in self._topology.accepted(task)]
        return sum([usable[kind] for kind in self._topology.kind])
