"""Batching queues: what they are, items and their results, and what happened in them.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from corral.wire.api.answers import Answer, Body

ItemWord = Literal["waiting", "done", "failed", "refused", "unknown"]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Size = Annotated[int, Meta(ge=1, le=100_000)]
Key = Annotated[str, Meta(min_length=1, max_length=128)]


class BatchQueueBody(Body, frozen=True):
    """A batching queue; its name is in the path. Durations and sizes are written as in files (20ms, 10GB).

    ``queue``: in the tree of queues, where its workers are charged. ``handler``: ``module:function`` that gets a list
    of items and returns a list of results, or the URL of an endpoint on the worker. ``job``: keys of a job file for the
    workers (gpus, vram, env, directory ...). ``workers_of``: use the workers of that batching queue.
    """

    queue: str
    handler: str
    job: dict[str, Any] = field(default_factory=dict)
    python: str = "python3"
    workers_of: str = ""
    worker_vram: str = "0"
    model_vram: str = "0"
    item_vram: str = "0"
    cost_key: str = ""  # the field of an item that says its cost; item_vram is then per unit of cost
    max_batch_size: Size = 32
    max_batch_cost: Count = 0
    max_batch_wait: str = "10ms"
    latency_target: str = ""
    weight: Annotated[int, Meta(ge=1, le=1_000)] = 1
    max_waiting: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    by_user: bool = False
    late: Literal["drop", "run"] = "drop"
    min_workers: Count = 0
    max_workers: Annotated[int, Meta(ge=1, le=10_000)] = 1
    idle: str = "60s"
    durable: bool = True
    keep_results: str = "1h"
    handler_timeout: str = "10m"  # of one call of the handler; a worker that exceeds it is ended; "0s": none


class BatchItemsBody(Body, frozen=True):
    """Items for a batching queue. ``ids``: one per item, by which a repeated request is recognised; without them the
    server makes some. ``wait_ms``: how long the answer may wait for results."""

    items: list[Any]
    ids: list[Key] = field(default_factory=list)
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    deadline_ms: Count | None = None  # from now
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class BatchPollBody(Body, frozen=True):
    """Which results to return. ``wait_ms``: how long the answer may wait until all of them are there."""

    ids: list[Key]
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class ItemView(Answer, frozen=True):
    """An item. ``retry_ms``: of a refused one, when to send it again; 0: never."""

    id: str
    state: ItemWord
    result: Any = None
    error: str = ""
    retry_ms: int = 0


class ItemList(Answer, frozen=True):
    items: tuple[ItemView, ...]


class BatchStats(Answer, frozen=True):
    """What happened in a queue since the server started. Times in milliseconds, of the last thousand items."""

    waiting: int = 0
    running: int = 0
    workers: int = 0
    done: int = 0
    failed: int = 0
    refused: dict[str, int] = {}  # noqa: RUF012 - msgspec copies it
    batches: int = 0
    mean_size: float = 0.0
    fill: float = 0.0  # mean size as a part of max_batch_size
    wait_p50_ms: float = 0.0
    wait_p95_ms: float = 0.0
    latency_p95_ms: float = 0.0
    service_mean_ms: float = 0.0
    vram_predicted_mib: int = 0  # of the last batch, with the model
    vram_measured_mib: int = 0
    busy_ms: int = 0  # of its workers
    busy_ms_by_user: dict[str, int] = {}  # noqa: RUF012


class BatchQueueView(Answer, frozen=True):
    """A batching queue. ``problem``: why its workers do not start."""

    name: str
    owner: str
    queue: str
    settings: BatchQueueBody
    stats: BatchStats
    is_draining: bool = False
    problem: str = ""
    jobs: tuple[str, ...] = ()


class BatchQueueList(Answer, frozen=True):
    batch_queues: tuple[BatchQueueView, ...]


class BatchDone(Answer, frozen=True):
    """The queue was changed."""

    name: str
