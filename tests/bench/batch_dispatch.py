"""How much CPU the batcher needs per item, with 1,000 queues and 1,000 workers, by the length of the lines.

Knows the pure batcher only. Every item is accepted, dispatched and finished once; the lines keep their length.
"""

from __future__ import annotations

import random
import time
from collections import deque

from corral.batching.batcher import Batcher
from corral.batching.items import BatchItem, BatchQueueSpec, BatchWorker, RunBatch


def items_per_cpu_s(
    waiting: int, *, queues: int = 1_000, workers: int = 1_000, items: int = 100_000, seed: int = 1
) -> float:
    """Items per second of CPU while ``waiting`` items wait in each line."""
    draw = random.Random(seed)
    batcher = Batcher()
    for number in range(queues):
        spec = BatchQueueSpec(
            name=f"q{number}",
            model_mib=draw.choice([2_000, 8_000, 14_000]),
            item_mib=100,
            max_batch_size=16,
            max_batch_wait_us=50_000,
            max_waiting=10_000_000,
        )
        batcher.set_queue(spec)
    for number in range(workers):
        batcher.add_worker(BatchWorker(f"w{number}", draw.choice([24_576, 40_960, 80_000])))
    numbers = [draw.randrange(queues) for _ in range(queues * waiting + items)]
    running: deque[RunBatch] = deque()
    submitted = finished = now_us = 0
    for which in numbers[: queues * waiting]:
        batcher.submit(BatchItem(submitted, f"q{which}", now_us, 100), now_us)
        submitted += 1
    began = time.process_time()
    while finished < items:
        now_us += 100
        while submitted < len(numbers) and submitted < finished + queues * waiting + 64:
            batcher.submit(BatchItem(submitted, f"q{numbers[submitted]}", now_us, 100), now_us)
            submitted += 1
        running.extend(each for each in batcher.decide(now_us) if isinstance(each, RunBatch))
        for _ in range(min(8, len(running))):
            batch = running.popleft()
            batcher.finish(batch.worker, now_us, 2_000 + 100 * len(batch.items), load_us=1_000 * batch.load)
            finished += len(batch.items)
    return finished / (time.process_time() - began)
