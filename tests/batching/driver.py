"""A seeded driver of the batcher in virtual time, with faults, and a judge that keeps its own books.

The seed is the test case: `run(seed, items)` draws queues, workers, arrivals and faults from it, checks every law after
every decision, and returns counts. The judge believes nothing that the batcher says about itself.

    python -m tests.batching.driver --items 1000000
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from corral.batching.batcher import Batcher
from corral.batching.items import (
    BatchItem,
    BatchQueueSpec,
    BatchWorker,
    DropItem,
    DropReason,
    Late,
    RunBatch,
    Trigger,
)

LATE_BY_AT_MOST_US = 1_000  # one tick of the driver
ITEMS_A_RUN = 2_000


class LawBroken(AssertionError):
    """Which law, and where."""


@dataclass
class Book:
    """What the judge has recorded about one queue."""

    spec: BatchQueueSpec
    waiting: dict[int, BatchItem] = field(default_factory=dict)
    arrived: list[tuple[int, int]] = field(default_factory=list)  # heap of (time, number)
    numbers: dict[int, list[int]] = field(default_factory=dict)  # priority -> heap of numbers
    returned: set[int] = field(default_factory=set)  # numbers that have run before
    flushed: int = -1
    passed: Counter[str] = field(default_factory=Counter)  # batches of others since it is due
    is_due: bool = False
    cost: int = 0
    size: int = 0

    def put(self, item: BatchItem) -> None:
        self.waiting[item.number] = item
        self.cost += item.cost
        self.size += item.size_mib
        heappush(self.arrived, (item.arrived_us, item.number))
        heappush(self.numbers.setdefault(item.priority, []), item.number)

    def take(self, number: int) -> None:
        item = self.waiting.pop(number)
        self.cost -= item.cost
        self.size -= item.size_mib

    def oldest_us(self) -> int | None:
        while self.arrived and self.arrived[0][1] not in self.waiting:
            heappop(self.arrived)
        return self.arrived[0][0] if self.arrived else None

    def first_number(self, priority: int) -> int | None:
        heap = self.numbers.get(priority, [])
        while heap and heap[0] not in self.waiting:
            heappop(heap)
        return heap[0] if heap else None

    def highest_priority(self) -> int | None:
        return max((each for each in self.numbers if self.first_number(each) is not None), default=None)


class Run:
    """One simulated life of a batcher."""

    def __init__(self, seed: int, items: int) -> None:
        self.draw = random.Random(seed)
        self.batcher = Batcher()
        self.now = 0
        self.left = items
        self.next_number = 0
        self.agenda: list[tuple[int, int, str, Any]] = []
        self.serial = 0
        self.books: dict[str, Book] = {}
        self.vram: dict[str, int] = {}
        self.models: dict[str, dict[str, int]] = {}  # by worker, as loaded and unloaded by decisions
        self.running: dict[str, RunBatch] = {}
        self.ended: dict[int, str] = {}
        self.kills: Counter[int] = Counter()
        self.poison: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.digest = hashlib.sha256()
        self._set_up()

    # --- the world ----------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        draw = self.draw
        sizes = draw.choice([[40_960], [40_960, 24_576], [80_000, 40_960, 24_576, 16_000]])
        self.is_uniform = len(sizes) == 1
        self.is_lossy = draw.random() < 0.5
        self.load_us = draw.choice([0, 0, 20_000, 400_000])
        self.fixed_us, self.each_us = draw.choice([500, 8_000, 50_000]), draw.choice([10, 500, 4_000])
        for number in range(draw.randint(1, 10)):
            wait_us = draw.choice([0, 1_000, 20_000, 300_000])
            spec = BatchQueueSpec(
                name=f"q{number}",
                model_mib=draw.choice([0, 2_000, 9_000, 20_000]),
                item_mib=draw.choice([0, 100, 1_500]),
                max_batch_size=draw.choice([1, 2, 7, 32]),
                max_batch_cost=draw.choice([0, 0, 20]),
                max_batch_wait_us=wait_us,
                latency_target_us=draw.choice([0, 0, 0, 200_000]),
                weight=draw.choice([1, 1, 1, 3]),
                max_waiting=draw.choice([50, 5_000]),
                by_user=draw.random() < 0.3,
                late=draw.choice([Late.DROP, Late.RUN]),
            )
            self.books[spec.name] = Book(spec)
            self.batcher.set_queue(spec)
        for number in range(draw.randint(1, 8)):
            self._add_worker(f"w{number}", draw.choice(sizes))
        self.gap_us = draw.choice([50, 1_000, 10_000])
        self._at(0, "arrive", None)

    def _add_worker(self, name: str, vram: int) -> None:
        self.vram[name] = vram
        self.models[name] = {}
        self.batcher.add_worker(BatchWorker(name, vram))

    def _at(self, when: int, what: str, about: Any) -> None:
        self.serial += 1
        heappush(self.agenda, (when, self.serial, what, about))

    def run(self) -> Counter[str]:
        while self.agenda or self.batcher.wake_us() is not None:
            wake = self.batcher.wake_us()
            if not self.agenda or (wake is not None and wake < self.agenda[0][0]):
                assert wake is not None
                self.now = max(self.now, wake)
            else:
                when, _, what, about = heappop(self.agenda)
                self.now = max(self.now, when)
                getattr(self, f"_{what}")(about)
            self._decide()
        self._check_end()
        return self.counts

    def _arrive(self, _about: None) -> None:
        draw = self.draw
        for _ in range(draw.choice([1, 1, 1, 5, 40])):
            if not self.left:
                break
            self.left -= 1
            self._submit()
        if draw.random() < 0.02:
            book = self.books[draw.choice(sorted(self.books))]
            book.flushed = max(book.waiting, default=-1)
            self.batcher.flush(book.spec.name, self.now)
        if draw.random() < 0.01:
            self._withdraw(self.books[draw.choice(sorted(self.books))])
        if self.is_lossy and draw.random() < 0.02 and len(self.vram) > 1:
            self._lose(draw.choice(sorted(self.vram)), was_killed=draw.random() < 0.5)
        if self.left:
            self._at(self.now + draw.randint(0, 2 * self.gap_us), "arrive", None)

    def _submit(self) -> None:
        draw = self.draw
        book = self.books[draw.choice(sorted(self.books))]
        self.next_number += 1
        size = book.spec.item_mib if draw.random() < 0.9 else draw.choice([book.spec.item_mib * 3, 30_000])
        item = BatchItem(
            self.next_number,
            book.spec.name,
            self.now,
            size,
            cost=draw.choice([1, 1, 1, 4]),
            priority=draw.choice([0, 0, 0, 0, 5, -3]),
            deadline_us=self.now + draw.choice([1_000, 5_000_000]) if draw.random() < 0.1 else 0,
            user=draw.choice(["ann", "bob", "eve"]),
        )
        largest = max(self.vram.values())
        refusal = self.batcher.submit(item, self.now)
        self._note("submit", item.number, "" if refusal is None else refusal.reason)
        self.counts["items"] += 1
        fits = book.spec.model_mib + size <= largest
        if refusal is None:
            if not fits:
                raise LawBroken(f"item {item.number} fits no worker and was accepted")
            if len(book.waiting.keys() - book.returned) >= book.spec.max_waiting:
                raise LawBroken(f"{book.spec.name} accepted more items than it may hold")
            book.put(item)
            if self.is_lossy and draw.random() < 0.001:
                self.poison.add(item.number)
            return
        self.counts[f"refused_{refusal.reason}"] += 1
        wrong = (
            (refusal.reason == "oversized" and fits)
            or (refusal.reason == "full" and (len(book.waiting) < book.spec.max_waiting or refusal.retry_us <= 0))
            or (refusal.reason == "late" and not item.deadline_us)
        )
        if wrong:
            raise LawBroken(f"item {item.number} was refused as {refusal.reason} without a reason")
        self.ended[item.number] = refusal.reason

    def _withdraw(self, book: Book) -> None:
        if book.waiting:
            number = self.draw.choice(sorted(book.waiting))
            if self.batcher.withdraw(book.waiting[number], self.now):
                book.take(number)
                self._end(number, "withdrawn")

    def _lose(self, worker: str, *, was_killed: bool) -> None:
        vram = self.vram.pop(worker)
        del self.models[worker]
        batch = self.running.pop(worker, None)
        dropped = self.batcher.remove_worker(worker, self.now, was_killed=was_killed)
        if batch is not None:
            book = self.books[batch.queue]
            for item in batch.items:
                self.kills[item.number] += was_killed
                book.returned.add(item.number)
                book.put(item)
        self._take_drops(dropped)
        self._add_worker(f"{worker.partition('.')[0]}.{self.serial}", vram)

    def _finish(self, batch: RunBatch) -> None:
        if self.running.get(batch.worker) is not batch:
            return  # the worker was lost meanwhile
        if any(item.number in self.poison for item in batch.items):
            self._lose(batch.worker, was_killed=True)
            return
        del self.running[batch.worker]
        cost = sum(item.cost for item in batch.items)
        done = self.batcher.finish(batch.worker, self.now, self._service_us(cost), load_us=self.load_us * batch.load)
        if done is not batch:
            raise LawBroken("the batcher names another batch than the one that has ended")
        for item in batch.items:
            self._end(item.number, "done")

    def _service_us(self, cost: int) -> int:
        return self.fixed_us + self.each_us * cost

    def _end(self, number: int, how: str) -> None:
        if number in self.ended:
            raise LawBroken(f"item {number} ends twice: {self.ended[number]}, then {how}")
        self.ended[number] = how
        self.counts[how] += 1

    # --- the laws -----------------------------------------------------------------------------------------

    def _decide(self) -> None:
        for decision in self.batcher.decide(self.now):
            if isinstance(decision, DropItem):
                self._take_drops([decision])
            else:
                self._check_batch(decision)
                self._start(decision)
        self._check_nothing_waits_that_could_run()

    def _take_drops(self, dropped: list[DropItem]) -> None:
        for drop in dropped:
            item, number = drop.item, drop.item.number
            book = self.books[item.queue]
            self._note("drop", number, drop.reason)
            if drop.reason is DropReason.POISON and self.kills[number] < 2:
                raise LawBroken(f"item {number} is called poison after {self.kills[number]} lost workers")
            if drop.reason is DropReason.LATE and not (item.deadline_us and book.spec.late is Late.DROP):
                raise LawBroken(f"item {number} is dropped as late without a deadline")
            if drop.reason is DropReason.OVERSIZED:
                if book.spec.model_mib + item.size_mib <= max(self.vram.values(), default=0):
                    raise LawBroken(f"item {number} is dropped as oversized and fits a worker")
            book.take(number)
            self._end(number, str(drop.reason))

    def _check_batch(self, batch: RunBatch) -> None:
        book, spec = self.books[batch.queue], self.books[batch.queue].spec
        self._note("run", batch.worker, batch.queue, *(item.number for item in batch.items))
        if batch.worker in self.running or batch.worker not in self.vram:
            raise LawBroken(f"batch {batch.number} is given to a worker that is not idle")
        if not batch.items or {item.queue for item in batch.items} != {batch.queue}:
            raise LawBroken(f"batch {batch.number} mixes queues")
        if len(batch.items) > spec.max_batch_size:
            raise LawBroken(f"batch {batch.number} has {len(batch.items)} items")
        cost = sum(item.cost for item in batch.items)
        if spec.max_batch_cost and len(batch.items) > 1 and cost > spec.max_batch_cost:
            if batch.trigger is not Trigger.RETRY:
                raise LawBroken(f"batch {batch.number} costs {cost}")
        if batch.trigger in (Trigger.FULL, Trigger.WAIT) and not spec.latency_target_us:
            self._check_trigger(batch, book)
        for item in batch.items:
            if item.number not in book.waiting:
                raise LawBroken(f"item {item.number} runs and does not wait")
            if item.deadline_us and item.deadline_us < self.now and spec.late is Late.DROP:
                if item.number not in book.returned:
                    raise LawBroken(f"item {item.number} runs after its deadline")
            self._check_order(item, book)
            book.take(item.number)
        self._check_vram(batch, spec)
        self._check_turns(batch)

    def _check_trigger(self, batch: RunBatch, book: Book) -> None:
        spec, oldest = book.spec, book.oldest_us()
        assert oldest is not None
        is_old = self.now - oldest >= spec.max_batch_wait_us
        if batch.trigger is Trigger.WAIT:
            if not is_old:
                raise LawBroken(f"batch {batch.number} left {spec.name} before its time")
            return
        count = len(book.waiting)
        is_full = count >= spec.max_batch_size or (spec.max_batch_cost and book.cost >= spec.max_batch_cost)
        if not is_full and spec.model_mib + book.size + book.size // count <= max(self.vram.values()):
            raise LawBroken(f"batch {batch.number} of {spec.name} is called full")

    def _check_order(self, item: BatchItem, book: Book) -> None:
        if item.number in book.returned or book.returned & book.waiting.keys():
            return
        if item.priority != book.highest_priority():
            raise LawBroken(f"item {item.number} runs before one of a higher priority")
        if not book.spec.by_user and item.number != book.first_number(item.priority):
            raise LawBroken(f"item {item.number} runs before {book.first_number(item.priority)}")

    def _check_vram(self, batch: RunBatch, spec: BatchQueueSpec) -> None:
        models = self.models[batch.worker]
        for other in batch.unload:
            del models[other]
        if batch.load is (batch.queue in models):
            raise LawBroken(f"batch {batch.number} says the model is loaded where it is not, or the reverse")
        models[batch.queue] = spec.model_mib
        used = sum(models.values()) + sum(item.size_mib for item in batch.items)
        if used > self.vram[batch.worker]:
            raise LawBroken(f"batch {batch.number} needs {used} MiB of {self.vram[batch.worker]}")

    def _check_turns(self, batch: RunBatch) -> None:
        """No queue that is due is passed by another more often than its weight says, where all workers are alike."""
        self.books[batch.queue].is_due = False
        self.books[batch.queue].passed.clear()
        if not self.is_uniform:
            return
        mine = self.books[batch.queue].spec.weight
        for name, book in self.books.items():
            if book.is_due and name != batch.queue:
                book.passed[batch.queue] += 1
                if book.passed[batch.queue] > 2 + -(-mine // book.spec.weight):
                    raise LawBroken(f"{name} is due and was passed {book.passed[batch.queue]} times by {batch.queue}")

    def _start(self, batch: RunBatch) -> None:
        self.running[batch.worker] = batch
        self.counts["batches"] += 1
        time_us = self._service_us(sum(item.cost for item in batch.items)) + self.load_us * batch.load
        self._at(self.now + time_us, "finish", batch)

    def _check_nothing_waits_that_could_run(self) -> None:
        idle = max((vram for name, vram in self.vram.items() if name not in self.running), default=0)
        for name, book in self.books.items():
            oldest = book.oldest_us()
            if oldest is None:
                continue
            wait_us = max(book.spec.latency_target_us, book.spec.max_batch_wait_us)
            is_old = self.now - oldest >= wait_us + LATE_BY_AT_MOST_US
            # a full batch may wait for a worker with its model, where loading takes time, until it is old
            is_full = len(book.waiting) >= book.spec.max_batch_size and not (
                book.spec.latency_target_us or self.load_us
            )
            book.is_due = book.is_due or is_old or is_full
            largest_item = max((item.size_mib for item in book.waiting.values()), default=0) if idle else 0
            if idle and book.spec.model_mib + largest_item <= idle and (is_old or is_full):
                raise LawBroken(f"{name} is due, a worker is idle, and nothing was dispatched")

    def _check_end(self) -> None:
        stuck = [number for book in self.books.values() for number in book.waiting]
        if stuck or self.running:
            raise LawBroken(f"{len(stuck)} items wait for ever, the first is {stuck[:1]}")
        if len(self.ended) != self.next_number:
            raise LawBroken(f"{self.next_number - len(self.ended)} items were lost")
        for number in self.poison:
            if self.ended[number] == "done":
                raise LawBroken(f"item {number} kills its workers and is called done")

    def _note(self, *what: object) -> None:
        self.digest.update(repr((self.now, *what)).encode())


def run(seed: int, items: int = ITEMS_A_RUN) -> Run:
    one = Run(seed, items)
    try:
        one.run()
    except LawBroken as broken:
        raise LawBroken(f"seed {seed}: {broken}") from None
    return one


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    total: Counter[str] = Counter()
    seed, began = given.seed, time.process_time()
    while total["items"] < given.items:
        total += run(seed).counts
        seed += 1
    settings = seed - given.seed
    print(json.dumps({**total, "settings": settings, "broken": 0, "cpu_s": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
