"""One batching queue as the batcher sees it: its line, what was learned about it, and when it is due.

Knows its own items and the VRAM of a worker it is offered; it does not choose the worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil

from corral.batching.items import BatchItem, BatchQueueSpec, BatchWorker, Late, Trigger
from corral.batching.learned import Learned
from corral.batching.line import ItemLine

_TARGET_PART = 0.85  # of the latency target, that waiting and the batch itself may take
_BATCH_PART = 0.45  # of the latency target, that one batch may take unless the line is long
_LONG = 2  # a line of this many batches is long: then the largest batches, which have the highest throughput
_BUSY = 0.65  # of the workers' time, from which on a worker should not be idle while items wait for more to come
_KEEP = 0.95  # of the mean time between arrivals, with each new one
_UNKNOWN_US = 1_000  # time of a batch before any has ended, whatever its size


class BatchQueueState:
    """``turn``: when it is its turn among the queues that are due, as a number that grows with each batch."""

    def __init__(self, spec: BatchQueueSpec) -> None:
        self.spec = spec
        self.line = ItemLine(spec.by_user)
        self.learned = Learned()
        self.retries: deque[tuple[BatchItem, ...]] = deque()  # parts of lost batches; each runs alone
        self.flush_to = -1  # the last item of a flush
        self.turn = 0
        self.workers = 0  # of its pool
        self._gap_us = 0.0  # mean time between arrivals, recent ones
        self._arrived_us = 0
        self.timer_us = 0  # when it is looked at again; 0: no timer
        self.patient_until_us = 0  # a full batch waits until then for a worker that has its model loaded

    def change(self, spec: BatchQueueSpec) -> None:
        if spec.by_user != self.spec.by_user:
            line = ItemLine(spec.by_user)
            for item in sorted(self.line, key=lambda each: each.number):
                line.append(item)
            self.line = line
        self.spec = spec

    def arrive(self, item: BatchItem) -> None:
        if self._arrived_us:
            self._gap_us += (1 - _KEEP) * (item.arrived_us - self._arrived_us - self._gap_us)
        self._arrived_us = item.arrived_us
        self.line.append(item)

    # --- when ---------------------------------------------------------------------------------------------

    def trigger(self, largest_mib: int, now_us: int) -> Trigger | None:
        """Why a batch is due now; None: it is not. ``largest_mib``: VRAM of the largest worker."""
        if self.retries:
            return Trigger.RETRY
        oldest = self.line.oldest()
        if oldest is None:
            return None
        if now_us >= oldest.arrived_us + self.wait_us():
            return Trigger.WAIT
        if oldest.number <= self.flush_to:
            return Trigger.FLUSH
        if now_us >= self.patient_until_us and self._is_full(largest_mib):
            return Trigger.FULL
        return None

    def next_us(self, largest_mib: int, now_us: int) -> int | None:
        """When the queue has to be looked at again, if nothing else happens."""
        times = []
        if self.trigger(largest_mib, now_us) is None and (oldest := self.line.oldest()) is not None:
            times.append(oldest.arrived_us + self.wait_us())
            if now_us < self.patient_until_us:
                times.append(self.patient_until_us)
        if self.spec.late is Late.DROP and (item := self.line.next_deadline()) is not None:
            times.append(max(now_us + 1, item.deadline_us - self.least_us(item) + 1))
        return min(times, default=None)

    def wait_us(self) -> int:
        """How long the oldest item may wait. With a latency target, once the time of a batch is known: for as long as
        the batch can still be finished in time, because a larger batch costs less time per item."""
        target_us = self.spec.latency_target_us
        if not target_us or not self.learned.is_known:
            return self.spec.max_batch_wait_us
        cost = self._cost_of(min(self.line.count, self.batch_size()))
        slack_us = max(0, int(target_us * _TARGET_PART) - self.learned.bound_us(cost))
        return min(slack_us, self.learned.service_us(cost)) if self._is_busy() else slack_us

    def _is_busy(self) -> bool:
        """Whether the workers are needed for most of the time even with full batches."""
        most = self.spec.max_batch_size
        return self.learned.service_us(self._cost_of(most)) > _BUSY * self._gap_us * most * max(1, self.workers)

    def batch_size(self) -> int:
        """How many items make a full batch."""
        target_us, most = self.spec.latency_target_us, self.spec.max_batch_size
        if not target_us or not self.learned.is_known:
            return most
        cost = self.learned.cost_within(int(target_us * _BATCH_PART))
        size = max(1, min(most, cost * max(1, self.line.count) // max(1, self.line.cost)))
        return most if self.line.count >= _LONG * size else size

    def _is_full(self, largest_mib: int) -> bool:
        line, spec = self.line, self.spec
        if line.count >= self.batch_size() or (spec.max_batch_cost and line.cost >= spec.max_batch_cost):
            return True
        return spec.model_mib + self.scaled(line.size_mib + line.size_mib // line.count) > largest_mib > 0

    def _cost_of(self, count: int) -> int:
        return max(1, self.line.cost * count // max(1, self.line.count))

    def least_us(self, item: BatchItem) -> int:
        """The time that the item takes at least."""
        return self.learned.service_us(item.cost)

    # --- how much -----------------------------------------------------------------------------------------

    def scaled(self, said_mib: int) -> int:
        """VRAM that items need which say that they need ``said_mib``."""
        return ceil(said_mib * self.learned.size_scale)

    def first(self) -> BatchItem | None:
        return self.retries[0][0] if self.retries else self.line.head()

    def need_mib(self) -> int:
        """VRAM for the model and the item that is next."""
        first = self.first()
        return self.spec.model_mib + (0 if first is None else self.scaled(first.size_mib))

    def whole(self) -> tuple[int, int]:
        """How many items the next batch has on a large enough worker, and VRAM for the model and about these."""
        if self.retries:
            group = self.retries[0]
            return len(group), self.spec.model_mib + self.scaled(sum(item.size_mib for item in group))
        count = min(self.line.count, self.batch_size())
        return count, self.spec.model_mib + self.scaled(self.line.size_mib * count // max(1, self.line.count))

    def taken(self, room_mib: int) -> list[BatchItem]:
        """Remove the next batch: as much as fits ``room_mib`` beside the models, at least one item."""
        room_mib = max(
            int(room_mib / self.learned.size_scale), 0 if (first := self.first()) is None else first.size_mib
        )
        if not self.retries:
            return self.line.take(self.batch_size(), self.spec.max_batch_cost, room_mib)
        group, size = self.retries.popleft(), 0
        for number, item in enumerate(group):
            size += item.size_mib
            if size > room_mib:
                self.retries.appendleft(group[number:])
                return list(group[:number])
        return list(group)

    def price(self, worker: BatchWorker, queues: Mapping[str, BatchQueueState]) -> tuple[float, tuple[str, ...]]:
        """The time per item of the next batch on a worker, and the models that have to be unloaded for it: few, so that
        the first item fits, or more, so that the whole batch does; loading them again later is part of the price."""
        name, count = self.spec.name, self.whole()[0]
        is_loaded = name in worker.models
        room_mib = worker.vram_mib - worker.loaded_mib - (0 if is_loaded else self.spec.model_mib)
        each_mib = max(1, (self.whole()[1] - self.spec.model_mib) // max(1, count))
        fixed_us = 0 if is_loaded else self.learned.load_us
        best: tuple[float, tuple[str, ...]] | None = None
        unload: tuple[str, ...] = ()
        for other in (*(each for each in worker.models if each != name), None):
            if room_mib >= self.need_mib() - self.spec.model_mib:
                fits = max(1, min(count, room_mib // each_mib))
                priced = (fixed_us + self._service_us(fits)) / fits
                if best is None or priced < best[0]:
                    best = priced, unload
                if fits == count:
                    break
            if other is not None:
                unload += (other,)
                room_mib += worker.models[other]
                fixed_us += queues[other].learned.load_us if other in queues else 0
        assert best is not None
        return best

    def _service_us(self, count: int) -> int:
        return self.learned.service_us(self._cost_of(count)) if self.learned.is_known else _UNKNOWN_US
