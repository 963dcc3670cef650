"""Faults of nodes, racks and GPUs: nodes that are lost and return, alone or with their rack, and failed GPUs.

All are drawn at random in advance, from one seed, so that all compared policies meet the same faults. Does not know
jobs.
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


class NodeDies(Struct, frozen=True, gc=False):
    """A node has failed, and the server does not know it yet: no work on it is saved any more."""

    node: str


class FaultRates(Struct, frozen=True):
    """Mean times between faults, and to repair them. 0: never.

    ``lemon_tail``: nodes fail at different rates, drawn from a Pareto distribution with this exponent and the same
    mean: the nearer to 1, the more failures come from a few nodes. 0: all nodes are equal.
    """

    node_hours: float = 0.0  # mean time between losses of one node
    node_repair_hours: float = 2.0
    lemon_tail: float = 0.0
    rack_hours: float = 0.0  # mean time between losses of a whole innermost domain
    rack_repair_hours: float = 1.0
    detect_ms: int = 0  # until the server knows that a node is lost
    gpu_hours: float = 0.0  # mean time between failures of one GPU
    gpu_repair_hours: float = 24.0
    lost_reports: float = 0.0  # fraction of reports that are lost and sent again, and of those that arrive twice
    report_again_ms: int = 10_000
    seed: int = 1


def fault_rates_faults(rates: FaultRates) -> Iterator[Refusal]:
    """The first error in the rates; None if they are valid."""
    for name in ("node_hours", "node_repair_hours", "rack_hours", "rack_repair_hours", "gpu_hours", "gpu_repair_hours"):
        if getattr(rates, name) < 0:
            yield Refusal("negative_amount", f"{name} is negative", field=name)
    if rates.lemon_tail and rates.lemon_tail <= 1:
        yield Refusal("bad_share", "lemon_tail is 0, or more than 1: otherwise there is no mean", field="lemon_tail")
    if not 0 <= rates.lost_reports < 1:
        yield Refusal("bad_share", "lost_reports is a fraction, from 0 to less than 1", field="lost_reports")


def mishaps(cluster: ClusterSpec, rates: FaultRates, begin_ms: int, end_ms: int) -> list[tuple[int, f.Fact | NodeDies]]:
    """All faults and repairs between two times, in order."""
    found: list[tuple[int, f.Fact | NodeDies]] = []
    racks = _rack_spells(cluster, rates, begin_ms, end_ms)
    for node in cluster.nodes:
        # one generator per node: adding a node does not change the others
        chance = Random(f"{rates.seed}/{node.name}")
        hours = rates.node_hours / _frailty(rates, node.name)
        alone = _spells(chance, hours, rates.node_repair_hours, begin_ms, end_ms)
        for down_ms, up_ms in _joined([*alone, *racks.get(node.path[-1] if node.path else "", ())]):
            if rates.detect_ms:
                found.append((down_ms, NodeDies(node.name)))
            gone_ms = down_ms + rates.detect_ms
            found += [(gone_ms, f.NodeGone(node.name)), (max(up_ms, gone_ms + 1), f.NodeBack(node.name))]
        for gpu in range(len(node.gpus)):
            for down_ms, up_ms in _spells(chance, rates.gpu_hours, rates.gpu_repair_hours, begin_ms, end_ms):
                found.append((down_ms, f.GpuObserved(node.name, gpu, Health.FAILED)))
                found.append((up_ms, f.GpuObserved(node.name, gpu, Health.HEALTHY)))
    found.sort(key=lambda each: each[0])
    return found


def _frailty(rates: FaultRates, node: str) -> float:
    """How often the node fails, as a multiple of the mean."""
    if not rates.lemon_tail:
        return 1.0
    drawn = Random(f"{rates.seed}/frailty/{node}").paretovariate(rates.lemon_tail)
    return drawn * (rates.lemon_tail - 1) / rates.lemon_tail


def _rack_spells(
    cluster: ClusterSpec, rates: FaultRates, begin_ms: int, end_ms: int
) -> dict[str, list[tuple[int, int]]]:
    """When the nodes of each rack are down together: its power or its switch has failed."""
    names = sorted({node.path[-1] for node in cluster.nodes if node.path})
    return {
        name: list(
            _spells(Random(f"{rates.seed}/rack/{name}"), rates.rack_hours, rates.rack_repair_hours, begin_ms, end_ms)
        )
        for name in names
    }


def _joined(spells: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spells that overlap are one."""
    joined: list[tuple[int, int]] = []
    for down_ms, up_ms in sorted(spells):
        if joined and down_ms <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(up_ms, joined[-1][1]))
        else:
            joined.append((down_ms, up_ms))
    return joined


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
