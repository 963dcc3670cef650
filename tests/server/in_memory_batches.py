"""Batching queues without a batch process, for tests of the interface: queues are kept, items are answered at once."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.server.batches.scaler import BatchQueueStatus
from corral.wire.api.batch import BatchQueueBody, BatchStats


class MemoryBatchChild:
    """Answers what the batch process would."""

    is_running = True
    is_needed = False

    def __init__(self) -> None:
        self.queues: dict[str, BatchQueueStatus] = {}

    def put(self, name: str, owner: str, body: BatchQueueBody) -> None:
        self.queues[name] = BatchQueueStatus(owner, body, False, BatchStats(), 0, 0, 0)

    async def ask(self, verb: str, **about: Any) -> Any:
        if verb == "show":
            return msgspec.to_builtins(self.queues)
        if verb == "put":
            self.put(about["name"], about["owner"], msgspec.convert(about["body"], BatchQueueBody))
        elif verb == "submit":
            return [{"id": str(n), "state": "waiting"} for n in range(len(about["body"]["items"]))]
        elif verb in ("results", "results_some"):
            return [{"id": each, "state": "done", "result": 1} for each in about["ids"]]
        return None


class MemoryScaler:
    """Has no workers."""

    def __init__(self) -> None:
        self.statuses: dict[str, BatchQueueStatus] = {}
        self.problems: dict[str, str] = {}
        self.jobs: dict[str, list[str]] = {}

    def forget_status(self, name: str) -> None:
        self.statuses.pop(name, None)
