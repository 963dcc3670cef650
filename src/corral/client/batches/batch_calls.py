"""Requests about batching queues. Each method describes its requests; see ``call``."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from corral.client.call import ApiCall, Item, Pause, Series, call, path, series
from corral.client.retry import answered
from corral.wire.api.batch import (
    BatchDone,
    BatchItemsBody,
    BatchPollBody,
    BatchQueueBody,
    BatchQueueList,
    BatchQueueView,
    ItemList,
    ItemView,
)

CHUNK = 500
CHUNKS_AHEAD = 8
WAIT_MS = 20_000


class BatchCalls:
    """Batching queues: items that are too short to be jobs, run in batches."""

    @call
    def batch_queues(self) -> ApiCall[BatchQueueList]:
        """All batching queues with their statistics."""
        return ApiCall("GET", path("batch"), BatchQueueList)

    @call
    def batch_queue(self, name: str) -> ApiCall[BatchQueueView]:
        """One batching queue."""
        return ApiCall("GET", path("batch", name), BatchQueueView)

    @call
    def set_batch_queue(self, name: str, wanted: BatchQueueBody) -> ApiCall[BatchDone]:
        """Create a batching queue, or change its settings."""
        return ApiCall("PUT", path("batch", name), BatchDone, body=wanted)

    @call
    def delete_batch_queue(self, name: str) -> ApiCall[BatchDone]:
        """Delete a batching queue with all its items."""
        return ApiCall("DELETE", path("batch", name), BatchDone)

    @call
    def flush_batch_queue(self, name: str) -> ApiCall[BatchDone]:
        """Dispatch what waits now without waiting for more."""
        return ApiCall("POST", path("batch", name, "flush"), BatchDone)

    @call
    def drain_batch_queue(self, name: str, drain: bool = True) -> ApiCall[BatchDone]:
        """Accept no more items; False: accept them again."""
        return ApiCall("POST", path("batch", name, "drain" if drain else "undrain"), BatchDone)

    @call
    def submit_items(self, name: str, wanted: BatchItemsBody) -> ApiCall[ItemList]:
        """Submit items. Repeatable only if they have ids."""
        return ApiCall("POST", path("batch", name), ItemList, body=wanted, repeatable=bool(wanted.ids))

    @call
    def item_results(self, name: str, ids: Sequence[str], wait_ms: int = 0) -> ApiCall[ItemList]:
        """The state of items, at the latest after ``wait_ms``."""
        return ApiCall("POST", path("batch", name, "results"), ItemList, body=BatchPollBody(list(ids), wait_ms))

    @series
    def map_items(
        self, name: str, items: Iterable[Any], ids: Iterable[str] | None = None, chunk: int = CHUNK
    ) -> Series[ItemView]:
        """The outcome of each item, in order. Items are sent a few thousand ahead; a full queue is waited for."""
        run, coming = uuid.uuid4().hex, iter(items)
        names = iter(ids) if ids is not None else (f"{run}-{number}" for number in range(1 << 62))
        ahead: deque[list[str]] = deque()
        is_over = False
        while ahead or not is_over:
            while not is_over and len(ahead) < CHUNKS_AHEAD:
                part = list(islice(coming, chunk))
                is_over = len(part) < chunk
                if part:
                    ahead.append(list(islice(names, len(part))))
                    yield from _sent(self, name, part, ahead[-1])
            if ahead:
                yield from _received(self, name, ahead.popleft())


def _sent(client: Any, name: str, items: list[Any], ids: list[str]) -> Series[ItemView]:
    """Submit items; those that found the queue full are sent again later."""
    while items:
        asked = ApiCall("POST", path("batch", name), ItemList, body=BatchItemsBody(items, ids))
        answer: ItemList = yield from answered(client, asked)
        again = [n for n, view in enumerate(answer.items) if view.state == "refused" and view.retry_ms]
        if again:
            yield Pause(max(answer.items[n].retry_ms for n in again) / 1000)
        items, ids = [items[n] for n in again], [ids[n] for n in again]


def _received(client: Any, name: str, ids: list[str]) -> Series[ItemView]:
    while ids:
        asked = ApiCall("POST", path("batch", name, "results"), ItemList, body=BatchPollBody(ids, WAIT_MS))
        answer: ItemList = yield from answered(client, asked)
        for number, view in enumerate(answer.items):
            if view.state == "waiting":
                ids = ids[number:]
                break
            yield Item(view)
        else:
            return
