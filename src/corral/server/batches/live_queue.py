"""One batching queue of a live server: what is stored about it, its items that have not ended, and what is counted.

Values and counts only; `live_batches` decides when they change.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from corral.batching.items import BatchItem
from corral.server.batches.queue_settings import span_ms
from corral.wire.api.batch import BatchQueueBody, BatchStats, ItemWord

_RECENT = 1_000


class StoredQueue(Struct, frozen=True):
    """A batching queue as it is stored. ``token``: with which its workers connect (a digest)."""

    owner: str
    body: BatchQueueBody
    token: str
    is_draining: bool = False


class LiveItem(Struct):
    """An item that has not ended."""

    id: str
    item: BatchItem
    payload: msgspec.Raw
    row: int  # its number in the store; 0: it is not durable


class LiveQueue:
    """A queue with what is counted about it."""

    def __init__(self, name: str, stored: StoredQueue) -> None:
        self.name = name
        self.open: dict[str, LiveItem] = {}  # by id
        self.ended: dict[str, tuple[ItemWord, bytes]] = {}  # by id; the oldest first
        self.refused: Counter[str] = Counter()
        self.busy_us_by_user: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.waits_us: deque[int] = deque(maxlen=_RECENT)
        self.latencies_us: deque[int] = deque(maxlen=_RECENT)
        self.service_us: deque[int] = deque(maxlen=_RECENT)
        self.sizes: deque[int] = deque(maxlen=_RECENT)
        self.vram = (0, 0)  # predicted and measured, of the last batch
        self.change(stored)

    def change(self, stored: StoredQueue) -> None:
        self.stored = stored
        self.keep_ms = span_ms(stored.body.keep_results)
        self.timeout_ms = span_ms(stored.body.handler_timeout)
        self.idle_us = span_ms(stored.body.idle) * 1000

    def stats(self, waiting: int, running: int, workers: int) -> BatchStats:
        mean = sum(self.sizes) / max(1, len(self.sizes))
        return BatchStats(
            waiting=waiting,
            running=running,
            workers=workers,
            done=self.counts["done"],
            failed=self.counts["failed"],
            refused=dict(self.refused),
            batches=self.counts["batches"],
            mean_size=round(mean, 2),
            fill=round(mean / self.stored.body.max_batch_size, 3),
            wait_p50_ms=_percentile(self.waits_us, 50),
            wait_p95_ms=_percentile(self.waits_us, 95),
            latency_p95_ms=_percentile(self.latencies_us, 95),
            service_mean_ms=round(sum(self.service_us) / max(1, len(self.service_us)) / 1000, 2),
            vram_predicted_mib=self.vram[0],
            vram_measured_mib=self.vram[1],
            busy_ms=sum(self.busy_us_by_user.values()) // 1000,
            busy_ms_by_user={user: busy_us // 1000 for user, busy_us in sorted(self.busy_us_by_user.items())},
        )


def _percentile(values: Sequence[int], percent: int) -> float:
    ranked = sorted(values)
    return round(ranked[min(len(ranked) - 1, len(ranked) * percent // 100)] / 1000, 2) if ranked else 0.0
