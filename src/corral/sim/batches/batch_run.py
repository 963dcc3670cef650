"""A run of the batcher in virtual time: requests arrive, batches take the time that a service model says.

Knows arrivals and true times; the batcher gets to know a time only when a batch has ended. Draws nothing at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from msgspec import Struct

from corral.batching.batcher import Batcher
from corral.batching.items import BatchItem, BatchQueueSpec, BatchWorker, RunBatch


class ServiceTimes(Struct, frozen=True):
    """How long a batch really takes: a fixed part and a part per item; and how long the model takes to load."""

    fixed_us: int
    each_us: int
    load_us: int = 0

    def batch_us(self, count: int) -> int:
        return self.fixed_us + self.each_us * count


class BatchRequest(Struct, frozen=True):
    """One item that arrives. ``size_mib`` 0: the size that its queue gives."""

    at_us: int
    queue: str
    size_mib: int = 0


class RanBatch(Struct, frozen=True):
    """One batch of a run."""

    queue: str
    worker: str
    began_us: int
    ended_us: int
    count: int


class BatchRun(Struct, frozen=True):
    """What a run did: by request, how long it waited and how long it took in all (-1: not run), and the batches."""

    waits_us: tuple[int, ...]
    latencies_us: tuple[int, ...]
    batches: tuple[RanBatch, ...]
    first_us: int
    end_us: int

    @property
    def completed(self) -> int:
        return sum(each >= 0 for each in self.latencies_us)

    @property
    def items_per_s(self) -> float:
        return self.completed * 1e6 / max(1, self.end_us - self.first_us)

    @property
    def mean_wait_ms(self) -> float:
        waits = [each for each in self.waits_us if each >= 0]
        return sum(waits) / max(1, len(waits)) / 1000

    @property
    def busy_s(self) -> float:
        return sum(batch.ended_us - batch.began_us for batch in self.batches) / 1e6

    def latency_ms(self, percent: int) -> float:
        """The smallest time within which at least this part of the completed requests was done."""
        ranked = sorted(each for each in self.latencies_us if each >= 0)
        return ranked[max(0, -(-len(ranked) * percent // 100) - 1)] / 1000 if ranked else 0.0


def run_batches(
    queues: Sequence[BatchQueueSpec],
    workers: Sequence[int],
    requests: Sequence[BatchRequest],
    times: dict[str, ServiceTimes],
) -> BatchRun:
    """Run all requests on workers with the given VRAM. Whatever waits when the last has arrived is flushed."""
    batcher = Batcher()
    for spec in queues:
        batcher.set_queue(spec)
    for number, vram_mib in enumerate(workers):
        batcher.add_worker(BatchWorker(f"worker-{number + 1}", vram_mib))
    sizes = {spec.name: spec.item_mib for spec in queues}
    arrivals = sorted(range(len(requests)), key=lambda number: (requests[number].at_us, number))
    waits = [-1] * len(requests)
    latencies = [-1] * len(requests)
    ends: list[tuple[int, int, RunBatch]] = []
    ran: list[RanBatch] = []
    now_us, position = 0, 0
    while position < len(arrivals) or ends or batcher.wake_us() is not None:
        now_us = max(now_us, _next_us(requests, arrivals, position, ends, batcher.wake_us()))
        while ends and ends[0][0] <= now_us:
            _, _, batch = heappop(ends)
            load_us = times[batch.queue].load_us * batch.load
            batcher.finish(batch.worker, now_us, times[batch.queue].batch_us(len(batch.items)), load_us=load_us)
            for item in batch.items:
                latencies[item.number] = now_us - item.arrived_us
        while position < len(arrivals) and requests[arrivals[position]].at_us <= now_us:
            number = arrivals[position]
            request = requests[number]
            size_mib = request.size_mib or sizes[request.queue]
            batcher.submit(BatchItem(number, request.queue, request.at_us, size_mib), now_us)
            position += 1
            if position == len(arrivals):
                for spec in queues:
                    batcher.flush(spec.name, now_us)
        for decision in batcher.decide(now_us):
            if isinstance(decision, RunBatch):
                for item in decision.items:
                    waits[item.number] = now_us - item.arrived_us
                took_us = times[decision.queue].batch_us(len(decision.items)) + times[decision.queue].load_us * (
                    decision.load
                )
                heappush(ends, (now_us + took_us, decision.number, decision))
                ran.append(RanBatch(decision.queue, decision.worker, now_us, now_us + took_us, len(decision.items)))
    first_us = min((request.at_us for request in requests), default=0)
    return BatchRun(tuple(waits), tuple(latencies), tuple(ran), first_us, now_us)


def _next_us(
    requests: Sequence[BatchRequest],
    arrivals: Sequence[int],
    position: int,
    ends: Sequence[tuple[int, int, RunBatch]],
    wake_us: int | None,
) -> int:
    times = [ends[0][0]] if ends else []
    if wake_us is not None:
        times.append(wake_us)
    if position < len(arrivals):
        times.append(requests[arrivals[position]].at_us)
    return min(times)
