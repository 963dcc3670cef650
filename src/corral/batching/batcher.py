"""The batcher: items in, batches out. Each batch has items of one queue only and fits its worker.

A batch is dispatched when it is full, when its oldest item has waited long enough, or on a flush; queues that are due
take turns, by weight. Knows no clock and no processes: the caller passes the time, carries out what is decided, and
reports what became of it. Given the same calls it decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from corral.batching.items import (
    BatchItem,
    BatchQueueSpec,
    BatchWorker,
    DropItem,
    DropReason,
    ItemRefusal,
    Late,
    RunBatch,
    Trigger,
)
from corral.batching.pool import WorkerPool
from corral.batching.queue_state import BatchQueueState

KILLS_MAX = 2  # an item that is alone with its worker when it is lost, this many times in all, is not run again
_TURN = 1 << 20  # what one batch costs a queue of weight 1

Decision = RunBatch | DropItem


class Batcher:
    """All queues, lines and workers. Every method is quick; `decide` costs what has changed."""

    def __init__(self) -> None:
        self._queues: dict[str, BatchQueueState] = {}
        self._pools: dict[str, WorkerPool] = {}
        self._pool_of: dict[str, str] = {}  # of each worker
        self._timers: list[tuple[int, str]] = []
        self._batches = 0
        self._changed: dict[str, None] = {}  # pools in which something may be dispatched
        self._unfit: dict[str, None] = {}  # queues whose first item no worker can hold

    # --- queues and workers -------------------------------------------------------------------------------

    def set_queue(self, spec: BatchQueueSpec) -> None:
        known = self._queues.get(spec.name)
        if known is None:
            known = self._queues[spec.name] = BatchQueueState(spec)
        else:
            known.change(spec)
        self._review(known, 0)

    def remove_queue(self, name: str) -> list[DropItem]:
        """Remove a queue; items that wait are dropped. A batch that runs may still be finished."""
        queue = self._queues.pop(name)
        self._unfit.pop(name, None)
        self._pool(queue.spec.pool).unmark(name)
        waiting = sorted(
            (*queue.line, *(item for group in queue.retries for item in group)), key=lambda item: item.number
        )
        for item in waiting:
            item.waits = False
        return [DropItem(item, DropReason.REMOVED) for item in waiting]

    def set_ceiling(self, pool: str, vram_mib: int) -> None:
        """Workers of this size may come, so what they can hold is accepted."""
        self._pool(pool).ceiling_mib = vram_mib
        self._find_classes(pool, self._pool(pool))

    def add_worker(self, worker: BatchWorker) -> None:
        pool = self._pool(worker.pool)
        self._pool_of[worker.id] = worker.pool
        pool.add(worker)
        self._find_classes(worker.pool, pool)

    def remove_worker(self, worker_id: str, now_us: int, *, was_killed: bool) -> list[DropItem]:
        """A worker has left. What it ran returns to the head of its line. If the worker was killed, its batch may be
        the reason: it is tried again in halves, and an item that is the last suspect is dropped."""
        name = self._pool_of.pop(worker_id)
        pool = self._pools[name]
        worker = pool.workers[worker_id]
        pool.remove(worker)
        batch, worker.running = worker.running, None
        dropped = [] if batch is None else self._returned(batch, now_us, was_killed)
        self._find_classes(name, pool)
        return dropped

    def retire_worker(self, worker_id: str) -> None:
        """The worker gets no more batches; what it runs it may finish."""
        pool = self._pools[self._pool_of[worker_id]]
        pool.set_aside(pool.workers[worker_id])

    # --- items --------------------------------------------------------------------------------------------

    def submit(self, item: BatchItem, now_us: int) -> ItemRefusal | None:
        queue = self._queues[item.queue]
        refusal = self._refusal(queue, item, now_us)
        if refusal is None:
            queue.arrive(item)
            if queue.line.count == 1 and not queue.retries:
                queue.turn = max(queue.turn, self._pool(queue.spec.pool).turn)
            self._review(queue, now_us)
        return refusal

    def restore(self, item: BatchItem) -> None:
        """Put in line an item that was accepted earlier, whatever the bounds are now."""
        queue = self._queues[item.queue]
        queue.line.append(item)
        self._review(queue, item.arrived_us)

    def withdraw(self, item: BatchItem, now_us: int) -> bool:
        """Take an item out of its line. False: it does not wait any more."""
        queue = self._queues.get(item.queue)
        if queue is None or not item.waits:
            return False
        queue.line.remove(item)
        self._review(queue, now_us)
        return True

    def flush(self, name: str, now_us: int) -> None:
        """Dispatch everything that waits now without waiting for more."""
        queue = self._queues[name]
        queue.flush_to = max((item.number for item in queue.line), default=-1)
        self._review(queue, now_us)

    # --- what runs ----------------------------------------------------------------------------------------

    def finish(
        self, worker_id: str, now_us: int, service_us: int, *, load_us: int = 0, peak_mib: int = 0
    ) -> RunBatch | None:
        """A worker has finished its batch, in ``service_us`` beside the loading of the model."""
        worker = self._worker(worker_id)
        batch, worker.running = worker.running, None
        if batch is None:
            return None
        if (queue := self._queues.get(batch.queue)) is not None:
            queue.learned.batch_ended(sum(item.cost for item in batch.items), service_us)
            if load_us:
                queue.learned.loaded(load_us)
            if peak_mib:
                queue.learned.measured(sum(item.size_mib for item in batch.items), peak_mib)
            queue.patient_until_us = 0
            self._review(queue, now_us)
        self._free(worker)
        return batch

    def out_of_memory(self, worker_id: str, now_us: int) -> list[DropItem]:
        """The batch of a worker did not fit its VRAM. It is tried again in halves, and items of this queue count as
        larger from now on."""
        worker = self._worker(worker_id)
        batch, worker.running = worker.running, None
        dropped: list[DropItem] = []
        if batch is not None:
            if (queue := self._queues.get(batch.queue)) is not None:
                queue.learned.ran_out()
            dropped = self._returned(batch, now_us, was_killed=True)
        self._free(worker)
        return dropped

    def _free(self, worker: BatchWorker) -> None:
        self._pools[worker.pool].now_idle(worker)
        self._changed[worker.pool] = None

    def _returned(self, batch: RunBatch, now_us: int, was_killed: bool) -> list[DropItem]:
        queue = self._queues.get(batch.queue)
        if queue is None:
            return [DropItem(item, DropReason.REMOVED) for item in batch.items]
        items = batch.items
        if not was_killed:
            queue.line.put_back(items)
            self._review(queue, now_us)
            return []
        for item in items:
            item.kills += 1
        if len(items) == 1 and items[0].kills >= KILLS_MAX:
            return [DropItem(items[0], DropReason.POISON)]
        middle = (len(items) + 1) // 2
        queue.retries += [part for part in (items[:middle], items[middle:]) if part]
        self._review(queue, now_us)
        return []

    # --- decisions ----------------------------------------------------------------------------------------

    def decide(self, now_us: int) -> list[Decision]:
        """Everything that is to be done now. What it returns is already part of the state."""
        decisions: list[Decision] = []
        while self._timers and self._timers[0][0] <= now_us:
            _, name = heappop(self._timers)
            if (queue := self._queues.get(name)) is not None:
                queue.timer_us = 0
                decisions += self._expired(queue, now_us)
                self._review(queue, now_us)
        while self._changed or self._unfit:
            for name in tuple(self._unfit):
                decisions += self._oversized(self._queues[name], now_us)
            pool_name = next(iter(self._changed), None)
            if pool_name is not None:
                decisions += self._dispatched(self._pools[pool_name], now_us)
                del self._changed[pool_name]
        return decisions

    def wake_us(self) -> int | None:
        """When `decide` has to be called again if nothing else happens."""
        return self._timers[0][0] if self._timers else None

    def _dispatched(self, pool: WorkerPool, now_us: int) -> Iterator[Decision]:
        while (found := pool.next_due()) is not None:
            queue = self._queues[found[0]]
            yield from self._expired(queue, now_us)
            trigger = queue.trigger(pool.largest_mib, now_us)
            if trigger is not None and (batch := self._batch(queue, pool, trigger, now_us)) is not None:
                yield batch
            self._review(queue, now_us)

    def _batch(self, queue: BatchQueueState, pool: WorkerPool, trigger: Trigger, now_us: int) -> RunBatch | None:
        """Take the next batch of a queue and give it to the worker that runs it at the least time per item."""
        name = queue.spec.name
        options = [
            (*queue.price(worker, self._queues), worker)
            for worker in pool.candidates(name, queue.need_mib(), queue.whole()[1])
        ]
        _, unload, worker = min(options, key=lambda option: (option[0], option[2].vram_mib))
        if trigger is Trigger.FULL and name not in worker.models:
            soon_us = pool.soonest_with(name)
            if soon_us is not None and now_us < soon_us < now_us + queue.learned.load_us:
                queue.patient_until_us = soon_us  # sooner than the model could be loaded once more
                return None
        pool.now_busy(worker)
        for other in unload:
            pool.unload(worker, other)
        is_loaded = name in worker.models
        pool.load(worker, name, queue.spec.model_mib)
        items = tuple(queue.taken(worker.vram_mib - worker.loaded_mib))
        cost = sum(item.cost for item in items)
        expected_us = queue.learned.service_us(cost) + (0 if is_loaded else queue.learned.load_us)
        self._batches += 1
        batch = RunBatch(
            self._batches,
            worker.id,
            name,
            items,
            queue.scaled(sum(item.size_mib for item in items)),
            not is_loaded,
            unload,
            expected_us,
            trigger,
        )
        worker.running, worker.free_us = batch, now_us + expected_us
        pool.turn = max(pool.turn, queue.turn)
        queue.turn = max(queue.turn, pool.turn) + _TURN // queue.spec.weight
        return batch

    def _expired(self, queue: BatchQueueState, now_us: int) -> Iterator[DropItem]:
        """Drop items that cannot be finished in time any more."""
        if queue.spec.late is Late.RUN:
            return
        while (item := queue.line.next_deadline()) is not None and item.deadline_us < now_us + queue.least_us(item):
            queue.line.remove(item)
            yield DropItem(item, DropReason.LATE)

    def _oversized(self, queue: BatchQueueState, now_us: int) -> Iterator[DropItem]:
        """Drop items that no worker can hold, now that workers have left or items have turned out larger."""
        largest_mib = self._pool(queue.spec.pool).largest_mib
        while (item := queue.first()) is not None and queue.need_mib() > largest_mib:
            if queue.retries:
                group = queue.retries.popleft()
                queue.retries.extendleft(reversed([(each,) for each in group[1:]]))
            else:
                queue.line.remove(item)
            yield DropItem(item, DropReason.OVERSIZED)
        self._unfit.pop(queue.spec.name, None)
        self._review(queue, now_us)

    def _refusal(self, queue: BatchQueueState, item: BatchItem, now_us: int) -> ItemRefusal | None:
        pool = self._pool(queue.spec.pool)
        need_mib = queue.spec.model_mib + queue.scaled(item.size_mib)
        if need_mib > pool.largest_mib:
            return ItemRefusal(
                "oversized",
                f"the model and this item need {need_mib} MiB; the largest worker has {pool.largest_mib} MiB",
            )
        if item.deadline_us and item.deadline_us < now_us + queue.least_us(item):
            return ItemRefusal("late", "the item cannot be finished before its deadline")
        if queue.line.count >= queue.spec.max_waiting:
            batches = queue.line.count // queue.spec.max_batch_size
            retry_us = batches * queue.learned.service_us(queue.spec.max_batch_size) // max(1, len(pool.workers))
            text = f"{queue.line.count} items wait in {queue.spec.name}, as many as it allows"
            return ItemRefusal("full", text, max(queue.spec.max_batch_wait_us, retry_us // 8, 1_000))
        return None

    def _review(self, queue: BatchQueueState, now_us: int) -> None:
        """Whether a queue is due, and if not, when it will be."""
        pool = self._pool(queue.spec.pool)
        queue.workers = len(pool.workers)
        if queue.trigger(pool.largest_mib, now_us) is not None:
            self._mark_due(queue, pool)
            self._changed[queue.spec.pool] = None
        else:
            pool.unmark(queue.spec.name)
        at_us = queue.next_us(pool.largest_mib, now_us)
        if at_us is not None and (not queue.timer_us or at_us < queue.timer_us):
            queue.timer_us = at_us
            heappush(self._timers, (at_us, queue.spec.name))

    def _find_classes(self, name: str, pool: WorkerPool) -> None:
        again, pool.due_again = pool.due_again, []
        for queue in (self._queues[each] for each in again if each in self._queues):
            self._mark_due(queue, pool)
        self._changed[name] = None

    def _mark_due(self, queue: BatchQueueState, pool: WorkerPool) -> None:
        need_mib = queue.need_mib()
        pool.mark_due(queue.spec.name, queue.turn, need_mib)
        if need_mib > pool.largest_mib > 0:
            self._unfit[queue.spec.name] = None

    def _pool(self, name: str) -> WorkerPool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = WorkerPool()
        return pool

    def _worker(self, worker_id: str) -> BatchWorker:
        return self._pools[self._pool_of[worker_id]].workers[worker_id]

    # --- what others may read -----------------------------------------------------------------------------

    @property
    def queues(self) -> dict[str, BatchQueueState]:
        return self._queues

    def workers(self, pool: str = "") -> dict[str, BatchWorker]:
        return self._pool(pool).workers
