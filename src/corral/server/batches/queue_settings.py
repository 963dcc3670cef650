"""A batching queue as users write it, checked and in the units of the batcher.

Knows durations, sizes and bounds. Does not know whether the queue of the tree exists or the handler can be imported.
"""

from __future__ import annotations

import re

from corral.batching.items import BatchQueueSpec, Late
from corral.core.intake.refusal import Refusal
from corral.wire.api.batch import BatchQueueBody
from corral.wire.durations import parse_span
from corral.wire.sizes import parse_size

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_HANDLER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_URL = re.compile(r"https?://[\w.:\[\]-]+(/\S*)?")
WAIT_MS_MAX = 60_000


def batch_queue_of(name: str, body: BatchQueueBody) -> BatchQueueSpec | Refusal:
    """The rules of the queue, or the first thing that is wrong with it."""
    if not _NAME.fullmatch(name):
        why = f"{name[:80]!r} cannot be the name of a batching queue"
        return Refusal("bad_name", why, "use up to 63 letters a-z, digits, '.', '_' and '-'", "name")
    if not (_HANDLER.fullmatch(body.handler) or _URL.fullmatch(body.handler)):
        why = f"{body.handler[:80]!r} is not a handler"
        return Refusal("bad_handler", why, "write module:function, or the URL of an endpoint", "handler")
    if body.min_workers > body.max_workers:
        return Refusal("bad_workers", "min_workers is above max_workers", "", "min_workers")
    sizes: dict[str, int] = {}
    for key in ("worker_vram", "model_vram", "item_vram"):
        size = 0 if getattr(body, key) in ("", "0") else parse_size(getattr(body, key))
        if isinstance(size, Refusal):
            return Refusal(size.code, f"{key}: {size.why}", size.hint, key)
        sizes[key] = size
    times: dict[str, int] = {}
    for key in ("max_batch_wait", "latency_target", "idle", "keep_results", "handler_timeout"):
        span = 0 if getattr(body, key) == "" else parse_span(getattr(body, key))
        if isinstance(span, Refusal):
            return Refusal(span.code, f"{key}: {span.why}", span.hint, key)
        times[key] = span
    if max(times["max_batch_wait"], times["latency_target"]) > WAIT_MS_MAX:
        return Refusal("too_long", "max_batch_wait and latency_target are at most 60s", "", "max_batch_wait")
    if sizes["worker_vram"] and sizes["model_vram"] + sizes["item_vram"] > sizes["worker_vram"]:
        why = "a worker cannot hold the model and one item"
        return Refusal("never_fits", why, "give worker_vram more than model_vram and item_vram together", "worker_vram")
    return BatchQueueSpec(
        name=name,
        pool=body.workers_of or name,
        model_mib=sizes["model_vram"],
        item_mib=sizes["item_vram"],
        max_batch_size=body.max_batch_size,
        max_batch_cost=body.max_batch_cost,
        max_batch_wait_us=times["max_batch_wait"] * 1000,
        latency_target_us=times["latency_target"] * 1000,
        weight=body.weight,
        max_waiting=body.max_waiting,
        by_user=body.by_user,
        late=Late(body.late),
    )


def span_ms(text: str) -> int:
    """A duration of a queue that was checked."""
    found = parse_span(text) if text else 0
    assert isinstance(found, int), found
    return found


def size_mib(text: str) -> int:
    """A size of a queue that was checked."""
    found = parse_size(text) if text not in ("", "0") else 0
    assert isinstance(found, int), found
    return found
