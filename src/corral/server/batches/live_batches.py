"""All batching queues while the server runs: items come in, batches go to connected workers, results are kept.

Turns the pure batcher with the clock of this process. An item is accepted when its row is durable, if its queue says
so; its result is given as soon as it is there. Knows neither sockets nor the engine.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog

from corral.batching.batcher import Batcher
from corral.batching.items import BatchItem, BatchWorker, DropItem, RunBatch
from corral.core.intake.refusal import Refusal
from corral.server.batches.live_queue import LiveItem, LiveQueue, StoredQueue
from corral.server.batches.queue_settings import batch_queue_of, size_mib
from corral.store.batch_items import DONE, FAILED, BatchStore, ItemRow
from corral.wire.api.batch import BatchQueueBody, BatchStats, ItemView, ItemWord

log = structlog.get_logger(__name__)

PAYLOAD_BYTES_MAX = 1 << 20
HELD_BYTES_MAX = 512 << 20  # of payloads that wait, all queues together
ITEMS_AT_ONCE_MAX = 10_000
KEPT_MAX = 200_000  # results in memory
_WORD: dict[int, ItemWord] = {DONE: "done", FAILED: "failed"}


class WorkerChannel(Protocol):
    """How a worker is reached."""

    def send(self, message: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class LiveBatches:
    """Everything between the API and the workers."""

    def __init__(self, store: BatchStore) -> None:
        self.store = store
        self.batcher = Batcher()
        self.queues: dict[str, LiveQueue] = {}
        self.channels: dict[str, WorkerChannel] = {}
        self.idle_since_us: dict[str, int] = {}
        self._items: dict[int, LiveItem] = {}
        self._began_us: dict[str, int] = {}
        self._next = store.last_number() + 1
        self._held = 0
        self._changed = asyncio.Event()  # replaced whenever an item ends
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        for name, body in store.queues().items():
            self._set(name, msgspec.json.decode(body, type=StoredQueue))
        for row in store.waiting():
            self._restore(row)

    # --- queues -------------------------------------------------------------------------------------------

    async def put_queue(self, name: str, owner: str, body: BatchQueueBody, token: str) -> Refusal | None:
        spec = batch_queue_of(name, body)
        if isinstance(spec, Refusal):
            return spec
        if body.workers_of and body.workers_of != name and body.workers_of not in self.queues:
            return Refusal("no_such_batch_queue", f"there is no batching queue {body.workers_of!r}", "", "workers_of")
        known = self.queues.get(name)
        stored = StoredQueue(owner, body, token if known is None else known.stored.token)
        await asyncio.wrap_future(self.store.put_queue(name, msgspec.json.encode(stored)))
        self._set(name, stored)
        self.turn()
        return None

    async def drop_queue(self, name: str) -> None:
        del self.queues[name]
        for drop in self.batcher.remove_queue(name):
            self._forget(drop.item.number)
        await asyncio.wrap_future(self.store.drop_queue(name))
        self._notify()

    async def drain(self, name: str, is_draining: bool) -> None:
        queue = self.queues[name]
        stored = msgspec.structs.replace(queue.stored, is_draining=is_draining)
        await asyncio.wrap_future(self.store.put_queue(name, msgspec.json.encode(stored)))
        queue.change(stored)

    def flush(self, name: str) -> None:
        self.batcher.flush(name, _now_us())
        self.turn()

    def _set(self, name: str, stored: StoredQueue) -> None:
        spec = batch_queue_of(name, stored.body)
        assert not isinstance(spec, Refusal), spec
        known = self.queues.get(name)
        if known is None:
            self.queues[name] = LiveQueue(name, stored)
        else:
            known.change(stored)
        self.batcher.set_queue(spec)
        if spec.pool == name:
            self.batcher.set_ceiling(name, size_mib(stored.body.worker_vram))

    # --- items --------------------------------------------------------------------------------------------

    async def submit(
        self, name: str, user: str, items: Sequence[Any], ids: Sequence[str], priority: int, deadline_ms: int | None
    ) -> list[ItemView]:
        """Accept items. One with a known id is not run again: its state is answered instead."""
        queue, now_us = self.queues[name], _now_us()
        ids = ids or [uuid.uuid4().hex for _ in items]
        known = await asyncio.to_thread(self.store.find, name, ids) if self._may_be_stored(queue, ids) else {}
        answers: list[ItemView] = []
        rows: list[ItemRow] = []
        for id_, value in zip(ids, items, strict=True):
            if id_ in queue.open or id_ in queue.ended:
                answers.append(self._view(queue, id_))
            elif id_ in known:
                answers.append(_stored_view(known[id_]))
            else:
                view = self._accept(queue, user, id_, value, priority, deadline_ms, now_us, rows)
                answers.append(view)
        self.turn()
        if rows:
            await asyncio.wrap_future(self.store.add(rows))
        return answers

    def _may_be_stored(self, queue: LiveQueue, ids: Sequence[str]) -> bool:
        return queue.stored.body.durable and any(id_ not in queue.open and id_ not in queue.ended for id_ in ids)

    def _accept(
        self,
        queue: LiveQueue,
        user: str,
        id_: str,
        value: Any,
        priority: int,
        deadline_ms: int | None,
        now_us: int,
        rows: list[ItemRow],
    ) -> ItemView:
        body, payload = queue.stored.body, msgspec.json.encode(value)
        refusal = self._bounds(queue, payload)
        number, self._next = self._next, self._next + 1
        item = self._item(queue, number, user, value, priority, now_us)
        item.deadline_us = 0 if deadline_ms is None else now_us + deadline_ms * 1000
        if refusal is None and (found := self.batcher.submit(item, now_us)) is not None:
            refusal = (found.reason, found.text, found.retry_us // 1000)
        if refusal is not None:
            queue.refused[refusal[0]] += 1
            return ItemView(id_, "refused", error=refusal[1], retry_ms=refusal[2])
        live = LiveItem(id_, item, msgspec.Raw(payload), number if body.durable else 0)
        self._keep(queue, live)
        if body.durable:
            now_ms = time.time_ns() // 1_000_000
            until_ms = 0 if deadline_ms is None else now_ms + deadline_ms
            rows.append(ItemRow(number, queue.name, id_, user, priority, until_ms, now_ms, payload))
        return ItemView(id_, "waiting")

    def _bounds(self, queue: LiveQueue, payload: bytes) -> tuple[str, str, int] | None:
        if queue.stored.is_draining:
            return "draining", f"{queue.name} is being drained and accepts nothing new", 0
        if len(payload) > PAYLOAD_BYTES_MAX:
            return "too_long", f"the item has {len(payload)} bytes; the limit is {PAYLOAD_BYTES_MAX}", 0
        if self._held + len(payload) > HELD_BYTES_MAX:
            return "full", "items that wait fill the memory for them", 1_000
        return None

    def _item(self, queue: LiveQueue, number: int, user: str, value: Any, priority: int, now_us: int) -> BatchItem:
        body, cost = queue.stored.body, 1
        if body.cost_key and isinstance(value, dict) and isinstance(value.get(body.cost_key), int | float):
            cost = max(1, min(1_000_000_000, int(value[body.cost_key])))
        item_mib = size_mib(body.item_vram)
        return BatchItem(number, queue.name, now_us, item_mib * cost, cost, priority, user=user)

    def _restore(self, row: ItemRow) -> None:
        queue = self.queues.get(row.queue)
        if queue is None or row.payload is None:
            return
        now_us, now_ms = _now_us(), time.time_ns() // 1_000_000
        value = msgspec.json.decode(row.payload)
        item = self._item(queue, row.number, row.owner, value, row.priority, now_us - (now_ms - row.arrived_ms) * 1000)
        if row.deadline_ms:
            item.deadline_us = max(1, now_us + (row.deadline_ms - now_ms) * 1000)
        self._keep(queue, LiveItem(row.id, item, msgspec.Raw(row.payload), row.number))
        self.batcher.restore(item)

    def _keep(self, queue: LiveQueue, live: LiveItem) -> None:
        self._items[live.item.number] = live
        queue.open[live.id] = live
        self._held += len(live.payload)

    def _forget(self, number: int) -> LiveItem | None:
        live = self._items.pop(number, None)
        if live is not None:
            self._held -= len(live.payload)
        return live

    # --- results ------------------------------------------------------------------------------------------

    async def results(self, name: str, ids: Sequence[str], wait_ms: int) -> list[ItemView]:
        """The state of items, when all of them have ended or the time is over."""
        queue = self.queues[name]
        until_s = time.monotonic() + wait_ms / 1000
        while any(id_ in queue.open for id_ in ids) and (left_s := until_s - time.monotonic()) > 0:
            changed = self._changed
            try:
                async with asyncio.timeout(left_s):
                    await changed.wait()
            except TimeoutError:
                break
        return await self._views(queue, ids)

    async def some_results(self, name: str, ids: Sequence[str], wait_ms: int) -> list[ItemView]:
        """The state of items, as soon as one of them has ended or the time is over."""
        queue = self.queues[name]
        if all(id_ in queue.open for id_ in ids):
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    while all(id_ in queue.open for id_ in ids):
                        await self._changed.wait()
            except TimeoutError:
                pass
        return await self._views(queue, ids)

    async def _views(self, queue: LiveQueue, ids: Sequence[str]) -> list[ItemView]:
        missing = [id_ for id_ in ids if id_ not in queue.open and id_ not in queue.ended]
        stored = await asyncio.to_thread(self.store.find, queue.name, missing) if missing else {}
        return [
            self._view(queue, id_)
            if id_ in queue.open or id_ in queue.ended
            else _stored_view(stored[id_])
            if id_ in stored
            else ItemView(id_, "unknown", error="there is no such item, or its result is no longer kept")
            for id_ in ids
        ]

    def _view(self, queue: LiveQueue, id_: str) -> ItemView:
        found = queue.ended.get(id_)
        return ItemView(id_, "waiting") if found is None else _ended_view(id_, *found)

    def _end(self, number: int, state: int, body: bytes, now_us: int, ends: list[tuple[int, bytes, int, int]]) -> None:
        live = self._forget(number)
        if live is None:
            return
        queue = self.queues.get(live.item.queue)
        if queue is not None:
            queue.open.pop(live.id, None)
            queue.ended[live.id] = (_WORD[state], body)
            queue.counts[_WORD[state]] += 1
            queue.latencies_us.append(now_us - live.item.arrived_us)
            if len(queue.ended) > KEPT_MAX:
                del queue.ended[next(iter(queue.ended))]
        if live.row:
            ends.append((state, body, time.time_ns() // 1_000_000, live.row))

    def _written(self, ends: list[tuple[int, bytes, int, int]]) -> None:
        if ends:
            self.store.end(ends)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def forget_old(self) -> None:
        """Drop results that were kept long enough."""
        now_ms = time.time_ns() // 1_000_000
        for name, queue in self.queues.items():
            self.store.forget(name, now_ms - queue.keep_ms)

    # --- workers ------------------------------------------------------------------------------------------

    def worker_came(self, worker_id: str, pool: str, vram_mib: int, channel: WorkerChannel) -> None:
        self.channels[worker_id] = channel
        self.idle_since_us[worker_id] = _now_us()
        self.queues[pool].counts["arrived"] += 1
        self.batcher.add_worker(BatchWorker(worker_id, vram_mib, pool))
        self.turn()

    def worker_left(self, worker_id: str, *, was_killed: bool) -> None:
        if self.channels.pop(worker_id, None) is None:
            return
        self.idle_since_us.pop(worker_id, None)
        self._began_us.pop(worker_id, None)
        self._take_drops(self.batcher.remove_worker(worker_id, _now_us(), was_killed=was_killed))
        self.turn()

    def batch_done(self, worker_id: str, results: Sequence[Any], service_us: int, load_us: int, peak_mib: int) -> None:
        """``results``: of each item, ``{"ok": value}`` or ``{"error": text}``."""
        now_us = _now_us()
        measured = max(0, peak_mib - self._loaded_mib(worker_id)) if peak_mib else 0
        batch = self.batcher.finish(worker_id, now_us, service_us, load_us=load_us, peak_mib=measured)
        self.idle_since_us[worker_id] = now_us
        if batch is None:
            return
        ends: list[tuple[int, bytes, int, int]] = []
        for item, result in zip(batch.items, results, strict=False):
            is_right = isinstance(result, dict) and "ok" in result
            value = result["ok"] if is_right else str((result or {}).get("error", "no result"))[:2_000]
            self._end(item.number, DONE if is_right else FAILED, msgspec.json.encode(value), now_us, ends)
        for item in batch.items[len(results) :]:
            self._end(item.number, FAILED, b'"the handler returned too few results"', now_us, ends)
        self._count(batch, now_us - self._began_us.pop(worker_id, now_us), service_us, peak_mib)
        self._written(ends)
        self.turn()

    def batch_out_of_memory(self, worker_id: str) -> None:
        self._began_us.pop(worker_id, None)
        self.idle_since_us[worker_id] = _now_us()
        self._take_drops(self.batcher.out_of_memory(worker_id, _now_us()))
        self.turn()

    def _loaded_mib(self, worker_id: str) -> int:
        for name in self.queues:
            worker = self.batcher.workers(name).get(worker_id)
            if worker is not None:
                return worker.loaded_mib
        return 0

    def _count(self, batch: RunBatch, busy_us: int, service_us: int, peak_mib: int) -> None:
        """The time of a batch is charged to the users of its items, by cost; the sum is the time of the worker."""
        queue = self.queues.get(batch.queue)
        if queue is None:
            return
        queue.counts["batches"] += 1
        queue.sizes.append(len(batch.items))
        queue.service_us.append(service_us)
        queue.vram = (batch.size_mib + size_mib(queue.stored.body.model_vram), peak_mib)
        total, left_us = sum(item.cost for item in batch.items), busy_us
        for item in batch.items[1:]:
            part = busy_us * item.cost // total
            queue.busy_us_by_user[item.user] += part
            left_us -= part
        queue.busy_us_by_user[batch.items[0].user] += left_us

    # --- the turn -----------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Decide soon: what arrives within one round of the event loop is decided together."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._is_scheduled = False
        now_us = _now_us()
        dropped = []
        for decision in self.batcher.decide(now_us):
            if isinstance(decision, DropItem):
                dropped.append(decision)
            else:
                self._send(decision, now_us)
        self._take_drops(dropped)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (wake_us := self.batcher.wake_us()) is not None:
            delay_s = max(0.0, (wake_us - _now_us()) / 1e6)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._decide)

    def _send(self, batch: RunBatch, now_us: int) -> None:
        queue = self.queues[batch.queue]
        queue.waits_us.extend(now_us - item.arrived_us for item in batch.items)
        self._began_us[batch.worker] = now_us
        self.idle_since_us.pop(batch.worker, None)
        lives = [self._items[item.number] for item in batch.items]
        self.channels[batch.worker].send(
            {
                "batch": batch.number,
                "queue": batch.queue,
                "handler": queue.stored.body.handler,
                "timeout_ms": queue.timeout_ms,
                "load": batch.load,
                "unload": batch.unload,
                "ids": [live.id for live in lives],
                "items": [live.payload for live in lives],
            }
        )

    def _take_drops(self, dropped: Sequence[DropItem]) -> None:
        words = {
            "late": "the item could not be finished before its deadline",
            "poison": "the item was alone with its worker twice when the worker died",
            "oversized": "no worker can hold the item",
            "removed": "the queue was removed",
        }
        ends: list[tuple[int, bytes, int, int]] = []
        for drop in dropped:
            self._end(drop.item.number, FAILED, msgspec.json.encode(words[drop.reason]), _now_us(), ends)
        if dropped:
            self._written(ends)

    # --- how many workers ---------------------------------------------------------------------------------

    def wanted(self, name: str) -> int:
        """How many workers the pool of this queue should have. Those that are idle for too long are stopped."""
        queue, body = self.queues[name], self.queues[name].stored.body
        workers = self.batcher.workers(name)
        served = [each for each in self.batcher.queues.values() if each.spec.pool == name]
        batches = sum(-(-each.line.count // each.spec.max_batch_size) + len(each.retries) for each in served)
        here = sum(not worker.is_leaving for worker in workers.values())
        idle = [each for each in workers if each in self.idle_since_us and not workers[each].is_leaving]
        if batches and not idle:
            return min(body.max_workers, max(body.min_workers, here + batches))
        spare = here - body.min_workers
        for worker_id in idle[: max(0, spare)]:
            if _now_us() - self.idle_since_us[worker_id] >= queue.idle_us:
                self.batcher.retire_worker(worker_id)
                self.channels[worker_id].send({"stop": True})
                here -= 1
        return max(body.min_workers, here)

    def stats(self, name: str) -> BatchStats:
        queue = self.queues[name]
        state, workers = self.batcher.queues[name], self.batcher.workers(self.batcher.queues[name].spec.pool)
        running = sum(len(w.running.items) for w in workers.values() if w.running and w.running.queue == name)
        waiting = state.line.count + sum(len(group) for group in state.retries)
        return queue.stats(waiting, running, len(workers))


def _stored_view(row: ItemRow) -> ItemView:
    return (
        ItemView(row.id, "waiting") if not row.state else _ended_view(row.id, _WORD[row.state], row.result or b"null")
    )


def _ended_view(id_: str, word: ItemWord, body: bytes) -> ItemView:
    value = msgspec.json.decode(body)
    return ItemView(id_, word, result=value) if word == "done" else ItemView(id_, word, error=str(value))


def _now_us() -> int:
    return time.monotonic_ns() // 1000
