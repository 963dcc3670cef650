"""Faults of nodes and GPUs: lost nodes that return, and failed GPUs, drawn at random from a seed.

Draws everything in advance from one seed, so that all compared policies meet the same faults. Does not know jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec import Struct

from corral.core import facts as f
from corral.core.intake.refusal import Refusal
from corral.core.model import Health
from corral.sim.cluster_spec import ClusterSpec

HOUR_MS = 3_600_000


class FaultRates(Struct, frozen=True):
    """Mean times between faults, and to repair them. 0: never."""

    node_hours: float = 0.0  # mean time between losses of one node
    node_repair_hours: float = 2.0
    gpu_hours: float = 0.0  # mean time between failures of one GPU
    gpu_repair_hours: float = 24.0
    lost_reports: float = 0.0  # fraction of reports that are lost and sent again, and of those that arrive twice
    report_again_ms: int = 10_000
    seed: int = 1


def fault_rates_faults(rates: FaultRates) -> Iterator[Refusal]:
    """The first error in the rates; None if they are valid."""
    for name in ("node_hours", "node_repair_hours", "gpu_hours", "gpu_repair_hours"):
        if getattr(rates, name) < 0:
            yield Refusal("negative_amount", f"{name} is negative", field=name)
    if not 0 <= rates.lost_reports < 1:
        yield Refusal("bad_share", "lost_reports is a fraction, from 0 to less than 1", field="lost_reports")


def mishaps(cluster: ClusterSpec, rates: FaultRates, begin_ms: int, end_ms: int) -> list[tuple[int, f.Fact]]:
    """All faults and repairs between two times, in order."""
    found: list[tuple[int, f.Fact]] = []
    for node in cluster.nodes:
        # one generator per node: adding a node does not change the others
        chance = Random(f"{rates.seed}/{node.name}")
        for down_ms, up_ms in _spells(chance, rates.node_hours, rates.node_repair_hours, begin_ms, end_ms):
            found += [(down_ms, f.NodeGone(node.name)), (up_ms, f.NodeBack(node.name))]
        for gpu in range(len(node.gpus)):
            for down_ms, up_ms in _spells(chance, rates.gpu_hours, rates.gpu_repair_hours, begin_ms, end_ms):
                found.append((down_ms, f.GpuObserved(node.name, gpu, Health.FAILED)))
                found.append((up_ms, f.GpuObserved(node.name, gpu, Health.HEALTHY)))
    found.sort(key=lambda each: each[0])
    return found


def _spells(chance: Random, every_hours: float, for_hours: float, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Pairs (down, up), with exponential times between them."""
    now = begin
    while every_hours > 0:
        now += max(1, int(chance.expovariate(1 / every_hours) * HOUR_MS))
        if now >= end:
            return
        repaired = now + max(1, int(chance.expovariate(1 / for_hours) * HOUR_MS)) if for_hours > 0 else now + 1
        yield now, repaired
        now = repaired


class Network:
    """Lost reports are sent again until they arrive. Some arrive twice."""

    def __init__(self, rates: FaultRates) -> None:
        self._rates, self._chance = rates, Random(f"{rates.seed}/network")

    def delivery_times(self, sent_ms: int) -> list[int]:
        """When a report that is sent at this time arrives."""
        arrives = sent_ms
        while self._chance.random() < self._rates.lost_reports < 1:
            arrives += self._rates.report_again_ms
        is_doubled = self._chance.random() < self._rates.lost_reports
        return [arrives, arrives + self._rates.report_again_ms] if is_doubled else [arrives]
