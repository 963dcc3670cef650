"""What the batcher is about: queues of items, workers, batches, and what is decided about them.

Values only. Times are microseconds of one clock that the caller reads; sizes are MiB of VRAM.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Late(StrEnum):
    """What happens to an item that waits and cannot be finished before its deadline."""

    DROP = "drop"
    RUN = "run"


class BatchQueueSpec(Struct, frozen=True, kw_only=True):
    """The rules of one batching queue. ``max_batch_cost`` 0: no bound; ``latency_target_us`` 0: no adaptive wait."""

    name: str
    pool: str = ""  # queues of one pool share its workers
    model_mib: int = 0  # VRAM of the model while it is loaded
    item_mib: int = 0  # VRAM per item, where an item has no size of its own
    max_batch_size: int = 32
    max_batch_cost: int = 0
    max_batch_wait_us: int = 10_000
    latency_target_us: int = 0
    weight: int = 1
    max_waiting: int = 100_000
    by_user: bool = False  # whether users of one priority take turns
    late: Late = Late.DROP


class BatchItem(Struct, gc=False):
    """One request. ``number`` is unique and increases in the order of arrival; ``deadline_us`` 0: none."""

    number: int
    queue: str
    arrived_us: int
    size_mib: int = 0
    cost: int = 1
    priority: int = 0
    deadline_us: int = 0
    user: str = ""
    kills: int = 0  # how many workers were lost with it
    waits: bool = False  # whether it is in its line


class Trigger(StrEnum):
    """Why a batch was dispatched."""

    FULL = "full"
    WAIT = "wait"
    FLUSH = "flush"
    RETRY = "retry"  # the half of a batch that was lost with its worker


class RunBatch(Struct, frozen=True):
    """Decision: run these items of one queue on a worker that is idle."""

    number: int
    worker: str
    queue: str
    items: tuple[BatchItem, ...]
    size_mib: int  # VRAM that the items are expected to need beside the models
    load: bool  # the model has to be loaded first
    unload: tuple[str, ...]  # queues whose models have to leave the worker before
    expected_us: int
    trigger: Trigger


class DropReason(StrEnum):
    """Why an item that was accepted will not be run."""

    LATE = "late"
    POISON = "poison"
    OVERSIZED = "oversized"
    REMOVED = "removed"


class DropItem(Struct, frozen=True):
    """Decision: do not run this item; report the reason."""

    item: BatchItem
    reason: DropReason


class ItemRefusal(Struct, frozen=True):
    """Why an item was not accepted. ``retry_us``: when to try again; 0: never."""

    reason: str
    text: str
    retry_us: int = 0


class BatchWorker(Struct):
    """A worker: how much VRAM it has, which models are loaded (least recently used first), what it runs."""

    id: str
    vram_mib: int
    pool: str = ""
    models: dict[str, int] = {}
    running: RunBatch | None = None
    free_us: int = 0  # when its batch is expected to end
    is_leaving: bool = False

    @property
    def loaded_mib(self) -> int:
        return sum(self.models.values())
