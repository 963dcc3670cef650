"""Batching policies compared on the same arrivals: one by one, fixed size and wait, adaptive, and the best possible.

Knows a service model and arrival rates; arrivals are drawn in advance from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct, structs

from corral.batching.items import BatchQueueSpec
from corral.sim.batches.batch_optimum import earliest_end_us
from corral.sim.batches.batch_run import BatchRequest, BatchRun, ServiceTimes, run_batches

OPTIMUM_ITEMS_MAX = 1_500  # the search for the optimum takes time
_QUEUE = "items"


class BatchStudy(Struct, frozen=True, kw_only=True):
    """The setting: one queue on equal workers. Rates are parts of what the workers can do with full batches."""

    times: ServiceTimes = ServiceTimes(20_000, 1_000)
    workers: int = 1
    items: int = 1_000
    size: int = 32
    wait_us: int = 20_000
    target_us: int = 200_000
    rates: tuple[float, ...] = (0.1, 0.3, 0.6, 0.8, 0.9)
    seed: int = 1

    @property
    def capacity_per_s(self) -> float:
        return self.workers * self.size * 1e6 / self.times.batch_us(self.size)

    def arrivals(self, rate: float) -> list[BatchRequest]:
        draw = random.Random(f"{self.seed}/{rate}")
        found, at_us = [], 0.0
        for _ in range(self.items):
            at_us += draw.expovariate(rate * self.capacity_per_s) * 1e6
            found.append(BatchRequest(int(at_us), _QUEUE))
        return found

    def run(self, arrivals: Sequence[BatchRequest], **rules: int) -> BatchRun:
        """The arrivals under a fixed or, with ``latency_target_us``, an adaptive policy."""
        fixed = BatchQueueSpec(
            name=_QUEUE, max_waiting=1_000_000_000, max_batch_size=self.size, max_batch_wait_us=self.wait_us
        )
        spec = structs.replace(fixed, **rules)
        return run_batches([spec], [1] * self.workers, arrivals, {_QUEUE: self.times})

    def optimum_per_s(self, arrivals: Sequence[BatchRequest]) -> float | None:
        """The highest throughput with 95 % of the requests within the target. None: impossible, or not computed."""
        if self.workers > 1 or self.items > OPTIMUM_ITEMS_MAX:
            return None
        at_us = [request.at_us for request in arrivals]
        end_us = earliest_end_us(at_us, self.times, self.size, self.target_us, self.items // 20)
        return None if end_us is None else self.items * 1e6 / max(1, end_us - at_us[0])


class StudyRow(Struct, frozen=True):
    """One policy at one arrival rate."""

    policy: str
    arrivals_per_s: float
    items_per_s: float
    p95_ms: float | None
    batches: int | None
    busy_s: float | None


def study_rows(study: BatchStudy) -> list[StudyRow]:
    rows = []
    for rate in study.rates:
        arrivals, offered = study.arrivals(rate), rate * study.capacity_per_s
        for name, rules in (
            ("one by one", {"max_batch_size": 1}),
            ("fixed", {}),
            ("adaptive", {"latency_target_us": study.target_us}),
        ):
            done = study.run(arrivals, **rules)
            rows.append(StudyRow(name, offered, done.items_per_s, done.latency_ms(95), len(done.batches), done.busy_s))
        best = study.optimum_per_s(arrivals)
        if best is not None:
            rows.append(StudyRow("optimum", offered, best, None, None, None))
    return rows


class CurvePoint(Struct, frozen=True):
    """One setting of size and wait on the curve of throughput and latency."""

    size: int
    wait_ms: int
    items_per_s: float
    p95_ms: float


CURVE_SIZES = (1, 2, 4, 8, 16, 32)
CURVE_WAITS_MS = (0, 5, 10, 20, 50, 100)


def curve(study: BatchStudy) -> list[CurvePoint]:
    """Throughput and p95 latency over batch size and wait, at the highest of the arrival rates."""
    arrivals = study.arrivals(max(study.rates))
    points = []
    for size in CURVE_SIZES:
        for wait_ms in CURVE_WAITS_MS:
            done = study.run(arrivals, max_batch_size=size, max_batch_wait_us=wait_ms * 1000)
            points.append(CurvePoint(size, wait_ms, done.items_per_s, done.latency_ms(95)))
    return points
