"""The batch process: answers the server over a pair of sockets and workers over a port, until the server goes away.

Keeps items off the server's event loop. Knows which message calls what in `live_batches` and `worker_port`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from corral.core.intake.refusal import Refusal
from corral.server.batches.batch_link import AskBatch, BatchSetup, ToldBatch, encode_pack, framed_message, read_message
from corral.server.batches.live_batches import ITEMS_AT_ONCE_MAX, LiveBatches
from corral.server.batches.worker_port import WorkerPort
from corral.store.batch_items import open_batch_store
from corral.wire.api.batch import BatchQueueBody

log = structlog.get_logger(__name__)

FROM_SERVER_MAX = 512 << 20
_FORGET_S = 30.0
_asked = msgspec.msgpack.Decoder(AskBatch)


class _NoSuchQueue(Exception):
    pass


class BatchProcess:
    """One connection to the server; requests are answered as they are done, in any order."""

    def __init__(self, batches: LiveBatches, port: int) -> None:
        self._batches = batches
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (raw := await read_message(reader, FROM_SERVER_MAX)) is not None:
            task = asyncio.create_task(self._answer(_asked.decode(raw), writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, ask: AskBatch, writer: asyncio.StreamWriter) -> None:
        try:
            told = ToldBatch(ask.number, await getattr(self, f"_{ask.verb}")(**ask.about))
        except _NoSuchQueue:
            told = ToldBatch(ask.number, problem=(404, "no_such_batch_queue", "there is no such batching queue"))
        except Exception as wrong:  # the request failed; the process goes on
            log.error("batch_request_failed", verb=ask.verb, exc_info=wrong)
            told = ToldBatch(ask.number, problem=(500, "internal", "the batch process failed on this request"))
        writer.write(framed_message(encode_pack(told)))
        await writer.drain()

    def _known(self, name: str) -> str:
        if name not in self._batches.queues:
            raise _NoSuchQueue
        return name

    async def _put(self, name: str, owner: str, body: dict[str, Any], token: str) -> tuple[str, str, str, str] | None:
        settings = msgspec.convert(body, BatchQueueBody)
        wrong = await self._batches.put_queue(name, owner, settings, token)
        return (wrong.code, wrong.why, wrong.hint, wrong.field) if isinstance(wrong, Refusal) else None

    async def _drop(self, name: str) -> None:
        await self._batches.drop_queue(self._known(name))

    async def _drain(self, name: str, is_draining: bool) -> None:
        await self._batches.drain(self._known(name), is_draining)

    async def _flush(self, name: str) -> None:
        self._batches.flush(self._known(name))

    async def _submit(self, name: str, user: str, body: dict[str, Any]) -> Any:
        self._known(name)
        assert len(body["items"]) <= ITEMS_AT_ONCE_MAX
        views = await self._batches.submit(
            name, user, body["items"], body["ids"], body["priority"], body["deadline_ms"]
        )
        if body["wait_ms"]:
            refused = {view.id: view for view in views if view.state == "refused"}
            waiting = [view.id for view in views if view.id not in refused]
            ended = {view.id: view for view in await self._batches.results(name, waiting, body["wait_ms"])}
            views = [refused.get(view.id) or ended[view.id] for view in views]
        return views

    async def _results(self, name: str, ids: list[str], wait_ms: int) -> Any:
        return await self._batches.results(self._known(name), ids, wait_ms)

    async def _results_some(self, name: str, ids: list[str], wait_ms: int) -> Any:
        return await self._batches.some_results(self._known(name), ids, wait_ms)

    async def _show(self, names: list[str] | None = None) -> Any:
        """Every queue, with what the server needs to scale its workers."""
        queues = self._batches.queues
        return {
            name: {
                "owner": queues[name].stored.owner,
                "body": queues[name].stored.body,
                "is_draining": queues[name].stored.is_draining,
                "stats": self._batches.stats(name),
                "wanted": 0 if queues[name].stored.body.workers_of else self._batches.wanted(name),
                "port": self._port,
                "arrived": queues[name].counts["arrived"],
            }
            for name in (queues if names is None else names)
            if name in queues
        }


async def run(setup: BatchSetup, link: socket.socket) -> None:
    store = open_batch_store(Path(setup.folder), setup.database, setup.epoch)
    store.has_failed = _end_after_failure
    batches = LiveBatches(store)
    workers = WorkerPort(batches)
    port = await workers.listen(setup.host, setup.port, setup.tls_certificate, setup.tls_key)
    reader, writer = await asyncio.open_connection(sock=link)
    batches.turn()

    async def forget() -> None:
        while True:
            await asyncio.sleep(_FORGET_S)
            batches.forget_old()

    upkeep = asyncio.create_task(forget())
    try:
        await BatchProcess(batches, port).serve(reader, writer)
    finally:
        upkeep.cancel()
        await workers.close()
        await asyncio.to_thread(store.close)


def _end_after_failure(wrong: BaseException) -> None:
    log.error("batch_items_not_written", error=str(wrong)[:300])
    os._exit(1)  # the server starts another process, which reads what is durable


def main() -> None:
    """``sys.argv``: the setup as JSON, and the number of the socket to the server."""
    setup = msgspec.json.decode(sys.argv[1], type=BatchSetup)
    link = socket.socket(fileno=int(sys.argv[2]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(setup, link))


if __name__ == "__main__":
    main()
