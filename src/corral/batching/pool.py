"""Workers that share queues: which are idle, which models they have loaded, and which of them suits a batch best.

Knows sizes, not items. A class is a size of VRAM that at least one worker has; a queue is due *in* the smallest class
that can hold its model and its first item. The order is total: no tie is left to chance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from corral.batching.items import BatchWorker

_LOOK_AT = 8  # idle workers of one size that are compared


class WorkerPool:
    """The workers of one pool, and the queues that are due, by class."""

    def __init__(self) -> None:
        self.workers: dict[str, BatchWorker] = {}
        self.sizes: list[int] = []  # of the classes, the smallest first
        self.ceiling_mib = 0  # a worker of this size may come
        self._idle: dict[int, dict[str, BatchWorker]] = {}  # by size; the one that is idle longest is first
        self._ready: dict[tuple[str, int], dict[str, BatchWorker]] = {}  # idle, by loaded model and size
        self._due: dict[int, list[tuple[int, str]]] = {}  # by class: turn and name of a queue
        self._entries: dict[str, tuple[int, tuple[int, str]]] = {}  # the valid entry of each queue that is due
        self._due_counts: dict[int, int] = {}
        self._holders: dict[str, dict[str, BatchWorker]] = {}  # workers that have a model loaded, by queue
        self.turn = 0  # of the last queue that was served
        self.due_again: list[str] = []  # queues whose class has to be found again, because the classes have changed

    @property
    def largest_mib(self) -> int:
        return max(self.ceiling_mib, self.sizes[-1] if self.sizes else 0)

    def add(self, worker: BatchWorker) -> None:
        self.workers[worker.id] = worker
        if worker.vram_mib not in self._idle:
            self._idle[worker.vram_mib] = {}
            self.sizes = sorted(self._idle)
            self._reclassify()
        self.now_idle(worker)

    def remove(self, worker: BatchWorker) -> None:
        del self.workers[worker.id]
        self._not_idle(worker)
        for name in tuple(worker.models):
            self.unload(worker, name)
        if not any(other.vram_mib == worker.vram_mib for other in self.workers.values()):
            del self._idle[worker.vram_mib]
            self.sizes = sorted(self._idle)
            self._reclassify()

    def now_idle(self, worker: BatchWorker) -> None:
        if not worker.is_leaving:
            self._idle[worker.vram_mib][worker.id] = worker
            for name in worker.models:
                self._ready.setdefault((name, worker.vram_mib), {})[worker.id] = worker

    def now_busy(self, worker: BatchWorker) -> None:
        """From here on the models of the worker may change."""
        self._not_idle(worker)

    def _not_idle(self, worker: BatchWorker) -> None:
        if self._idle[worker.vram_mib].pop(worker.id, None) is None:
            return
        for name in worker.models:
            if (ready := self._ready.get((name, worker.vram_mib))) is not None:
                ready.pop(worker.id, None)

    def set_aside(self, worker: BatchWorker) -> None:
        """The worker gets no more batches."""
        worker.is_leaving = True
        self._not_idle(worker)

    def class_of(self, need_mib: int) -> int:
        """The smallest class that holds ``need_mib``; ``len(sizes)`` if there is none."""
        return bisect_left(self.sizes, need_mib)

    def load(self, worker: BatchWorker, name: str, model_mib: int) -> None:
        """The model of a queue is on a busy worker, and is the last of its models that was used."""
        worker.models.pop(name, None)
        worker.models[name] = model_mib
        self._holders.setdefault(name, {})[worker.id] = worker

    def unload(self, worker: BatchWorker, name: str) -> None:
        del worker.models[name]
        self._holders.get(name, {}).pop(worker.id, None)

    def soonest_with(self, name: str) -> int | None:
        """When one of the busy workers with the model of a queue is expected to be idle, of the first few."""
        holders = islice(self._holders.get(name, {}).values(), _LOOK_AT)
        return min((worker.free_us for worker in holders if worker.running and not worker.is_leaving), default=None)

    # --- queues that are due ------------------------------------------------------------------------------

    def mark_due(self, name: str, turn: int, need_mib: int) -> None:
        entry = (self.class_of(need_mib), (turn, name))
        old = self._entries.get(name)
        if old == entry:
            return
        self.unmark(name)
        self._entries[name] = entry
        self._due_counts[entry[0]] = self._due_counts.get(entry[0], 0) + 1
        heappush(self._due.setdefault(entry[0], []), entry[1])

    def unmark(self, name: str) -> None:
        if (old := self._entries.pop(name, None)) is not None:
            self._due_counts[old[0]] -= 1

    def _reclassify(self) -> None:
        self.due_again += self._entries
        self._due.clear()
        self._entries.clear()
        self._due_counts.clear()

    def next_due(self) -> tuple[str, int] | None:
        """The queue whose turn it is, of those that an idle worker can serve, and its class.

        A queue takes a worker larger than it needs only if no queue that is due needs that worker: the smaller workers,
        which are busy, will serve it.
        """
        largest = self._largest_idle()
        best: tuple[tuple[int, str], int] | None = None
        for number in range(largest + 1):
            first = self._first_due(number)
            if first is not None and (best is None or first < best[0]):
                best = first, number
        if best is None:
            return None
        smallest = next((n for n in range(best[1], largest + 1) if self._idle[self.sizes[n]]), largest)
        for number in range(smallest, best[1], -1):
            first = self._first_due(number)
            if first is not None and self._are_scarce(number, largest):
                return first[1], number
        return best[0][1], best[1]

    def _are_scarce(self, number: int, largest: int) -> bool:
        """Whether the queues that need this class or a larger one need all idle workers that have it."""
        idle = sum(len(self._idle[self.sizes[n]]) for n in range(number, largest + 1))
        return idle <= sum(self._due_counts.get(n, 0) for n in range(number, len(self.sizes)))

    def _largest_idle(self) -> int:
        return next((n for n in range(len(self.sizes) - 1, -1, -1) if self._idle[self.sizes[n]]), -1)

    def _first_due(self, number: int) -> tuple[int, str] | None:
        heap = self._due.get(number)
        while heap:
            if self._entries.get(heap[0][1]) == (number, heap[0]):
                return heap[0]
            heappop(heap)
        return None

    # --- which worker -------------------------------------------------------------------------------------

    def candidates(self, name: str, need_mib: int, whole_mib: int) -> Iterator[BatchWorker]:
        """Idle workers to choose from: with the model loaded, and without; each the smallest that holds the whole
        batch, or the largest that holds its first item."""
        for find in (self._first_ready, self._first_idle):
            found = None
            for size in self.sizes[self.class_of(need_mib) :]:
                if (worker := find(name, size, need_mib)) is not None:
                    found = worker
                    if size >= whole_mib:
                        break
            if found is not None:
                yield found

    def _first_ready(self, name: str, size: int, _need_mib: int) -> BatchWorker | None:
        ready = self._ready.get((name, size))
        return next(iter(ready.values())) if ready else None

    def _first_idle(self, name: str, size: int, need_mib: int) -> BatchWorker | None:
        """A worker without the model: rather one that needs to unload nothing, of the first few."""
        fallback = None
        for worker in islice(self._idle[size].values(), _LOOK_AT):
            if name not in worker.models:
                if worker.loaded_mib + need_mib <= size:
                    return worker
                fallback = fallback or worker
        return fallback
