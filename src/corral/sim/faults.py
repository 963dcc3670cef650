"""What befalls machines: nodes that are lost and come back, GPUs that fail, by chance and by seed.

Draws everything in advance from one seed, so that the same misfortunes meet every policy that is compared. Knows
nothing of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec import Struct

from corral.core import facts as f
from corral.core.intake.refusal import Refusal
from corral.core.model import Health
from corral.sim.cluster import ClusterSpec

HOUR_MS = 3_600_000


class FaultRates(Struct, frozen=True):
    """How often things break, and how long they stay broken. A mean time of 0 means never."""

    node_hours: float = 0.0  # between losses of one node
    node_repair_hours: float = 2.0
    gpu_hours: float = 0.0  # between failures of one GPU
    gpu_repair_hours: float = 24.0
    lost_reports: float = 0.0  # the part of reports that get lost and are made again, and that come twice
    report_again_ms: int = 10_000
    seed: int = 1


def fault_rates_faults(rates: FaultRates) -> Iterator[Refusal]:
    """What is wrong with the rates."""
    for name in ("node_hours", "node_repair_hours", "gpu_hours", "gpu_repair_hours"):
        if getattr(rates, name) < 0:
            yield Refusal("negative_amount", f"{name} is negative", field=name)
    if not 0 <= rates.lost_reports < 1:
        yield Refusal("bad_share", "lost_reports is a part, from 0 to less than 1", field="lost_reports")


def mishaps(cluster: ClusterSpec, rates: FaultRates, begin_ms: int, end_ms: int) -> list[tuple[int, f.Fact]]:
    """Everything that breaks and is mended between two times, in order."""
    found: list[tuple[int, f.Fact]] = []
    for node in cluster.nodes:
        # a generator for each machine: adding one changes nothing for the others
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
    """(down, up) again and again, both lengths exponential."""
    now = begin
    while every_hours > 0:
        now += max(1, int(chance.expovariate(1 / every_hours) * HOUR_MS))
        if now >= end:
            return
        mended = now + max(1, int(chance.expovariate(1 / for_hours) * HOUR_MS)) if for_hours > 0 else now + 1
        yield now, mended
        now = mended


class Network:
    """Reports that get lost are made again: whoever reports goes on until it is heard. Some are heard twice."""

    def __init__(self, rates: FaultRates) -> None:
        self._rates, self._chance = rates, Random(f"{rates.seed}/network")

    def carry(self, sent_ms: int) -> list[int]:
        """When a report that is made at this time arrives."""
        arrives = sent_ms
        while self._chance.random() < self._rates.lost_reports < 1:
            arrives += self._rates.report_again_ms
        is_doubled = self._chance.random() < self._rates.lost_reports
        return [arrives, arrives + self._rates.report_again_ms] if is_doubled else [arrives]
