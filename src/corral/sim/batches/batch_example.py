"""The classic example: three workers (two of 40 GB, one of 24 GB) and 32 requests of several model families.

A publication ran that setting in real time, with workers that sleep, and gives the results below. It gives neither the
arrivals nor the times of batches nor the sizes; those here are assumptions, and `ASSUMPTIONS` states them.
"""

from __future__ import annotations

from msgspec import Struct

from corral.batching.items import BatchQueueSpec
from corral.sim.batches.batch_run import BatchRequest, BatchRun, ServiceTimes, run_batches


class PublishedRun(Struct, frozen=True):
    """What the publication reports."""

    requests: int = 32
    batches: int = 14
    mean_wait_ms: float = 122.0
    items_per_s: float = 50.9


PUBLISHED = PublishedRun()
WORKERS_MIB = (40_960, 40_960, 24_576)
#: Model family: VRAM of its model and of one item, and how long a batch takes.
FAMILIES = {
    "embed": (4_096, 512, ServiceTimes(50_000, 4_000)),
    "rerank": (8_192, 1_024, ServiceTimes(65_000, 6_000)),
    "vision": (12_288, 2_048, ServiceTimes(80_000, 8_000)),
    "chat": (20_480, 4_096, ServiceTimes(95_000, 10_000)),
}
ARRIVE_OVER_MS = 400
MAX_BATCH_SIZE = 8
MAX_BATCH_WAIT_MS = 100

ASSUMPTIONS = (
    f"32 requests, eight of each family in turn, arrive evenly over {ARRIVE_OVER_MS} ms",
    *(
        f"{name}: model {model} MiB, {item} MiB per item, a batch of n takes {times.fixed_us // 1000} + "
        f"{times.each_us // 1000} n ms"
        for name, (model, item, times) in FAMILIES.items()
    ),
    "models are loaded beforehand; workers sleep for the time of the batch",
    f"ours: max_batch_size {MAX_BATCH_SIZE}, max_batch_wait {MAX_BATCH_WAIT_MS} ms, flush after the last arrival",
)


def example_requests() -> list[BatchRequest]:
    names = list(FAMILIES)
    gap_us = ARRIVE_OVER_MS * 1000 // PUBLISHED.requests
    return [BatchRequest(number * gap_us, names[number % len(names)]) for number in range(PUBLISHED.requests)]


def run_example(size: int = MAX_BATCH_SIZE, wait_ms: float = MAX_BATCH_WAIT_MS) -> BatchRun:
    queues = [
        BatchQueueSpec(
            name=name,
            model_mib=model_mib,
            item_mib=item_mib,
            max_batch_size=size,
            max_batch_wait_us=int(wait_ms * 1000),
        )
        for name, (model_mib, item_mib, _) in FAMILIES.items()
    ]
    times = {name: each[2] for name, each in FAMILIES.items()}
    return run_batches(queues, WORKERS_MIB, example_requests(), times)
