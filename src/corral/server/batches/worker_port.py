"""Where workers connect: each says who it is, gets batches, sends results. What it says is checked here.

A connection that ends, or is silent for too long, is a worker that was lost; one that says goodbye is not suspected.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from typing import Any

import msgspec
import structlog

from corral.server.batches.batch_link import FROM_WORKERS_MAX, encode_json, framed_message, read_message
from corral.server.batches.live_batches import LiveBatches

log = structlog.get_logger(__name__)

HELLO_S = 10.0
TAKEN_S = 3.0  # the process of a server that was killed may hold the port for this time
SILENCE_S = 15.0  # a worker sends something every two seconds
HELLO_BYTES_MAX = 4 << 10


class WorkerPort:
    """The listening port for workers."""

    def __init__(self, batches: LiveBatches) -> None:
        self._batches = batches
        self._server: asyncio.Server | None = None
        self._count = 0

    async def listen(self, host: str, port: int, certificate: str, key: str) -> int:
        """Listen on a port, or if it is taken on any other; returns the port."""
        context = None
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
        until_s = asyncio.get_running_loop().time() + TAKEN_S
        while self._server is None:
            try:
                self._server = await asyncio.start_server(self._talk, host, port, ssl=context)
            except OSError:
                if asyncio.get_running_loop().time() > until_s:
                    port = 0
                await asyncio.sleep(0.05)
        return int(self._server.sockets[0].getsockname()[1])

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker_id, is_parting = "", False
        try:
            async with asyncio.timeout(HELLO_S):
                raw = await read_message(reader, HELLO_BYTES_MAX)
            hello = _message(raw)
            pool, vram_mib = self._admitted(hello)
            if pool is None:
                writer.write(framed_message(encode_json({"refused": "the queue is unknown or the token is wrong"})))
                return
            self._count += 1
            worker_id = f"{str(hello.get('worker', 'worker'))[:60]}#{self._count}"
            self._batches.worker_came(worker_id, pool, vram_mib, _Channel(writer))
            while not is_parting:
                async with asyncio.timeout(SILENCE_S):
                    raw = await read_message(reader, FROM_WORKERS_MAX)
                if raw is None:
                    break
                is_parting = self._take(worker_id, _message(raw))
        except asyncio.CancelledError:
            is_parting = True  # this process ends, not the worker
        except (TimeoutError, ValueError, OSError) as wrong:
            log.warning("worker_lost", worker=worker_id, error=str(wrong)[:200])
        finally:
            if worker_id:
                self._batches.worker_left(worker_id, was_killed=not is_parting)
            writer.close()

    def _admitted(self, hello: dict[str, Any]) -> tuple[str | None, int]:
        queue = self._batches.queues.get(str(hello.get("hello")))
        digest = hashlib.sha256(str(hello.get("token")).encode()).hexdigest()
        if queue is None or not hmac.compare_digest(digest, queue.stored.token):
            return None, 0
        vram = hello.get("vram_mib")
        return queue.name, vram if isinstance(vram, int) and 0 <= vram < 1 << 30 else 0

    def _take(self, worker_id: str, message: dict[str, Any]) -> bool:
        """Apply one message; True: the worker leaves by itself."""
        if "done" in message:
            results = message.get("results")
            self._batches.batch_done(
                worker_id,
                results if isinstance(results, list) else [],
                _number(message.get("service_us")),
                _number(message.get("load_us")),
                _number(message.get("peak_mib")),
            )
        elif "oom" in message:
            self._batches.batch_out_of_memory(worker_id)
        return "bye" in message

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()


class _Channel:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed_message(encode_json(message)))

    def close(self) -> None:
        self._writer.close()


def _message(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise ValueError("the connection ended before the worker said who it is")
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise ValueError(f"not a message: {wrong}") from None
    if not isinstance(found, dict):
        raise ValueError("a message is an object")
    return found


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 50 else 0
