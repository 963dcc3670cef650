"""The server's end of the batch process: start it when it is needed, ask it, start it again when it has ended.

Knows nothing about items. A request that was under way when the process ended fails; its sender may repeat it, because
items have ids.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import structlog

from corral.server.batches.batch_link import AskBatch, BatchSetup, ToldBatch, encode_pack, framed_message, read_message
from corral.store.batch_items import FILE

log = structlog.get_logger(__name__)

ANSWER_S = 90.0
_ANSWER_BYTES_MAX = 1 << 30
_told = msgspec.msgpack.Decoder(ToldBatch)


class BatchAway(Exception):
    """The batch process has ended or does not answer."""


class BatchProblem(Exception):
    """A request that the batch process refused: status, code and text."""

    def __init__(self, status: int, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class BatchChild:
    """One batch process at a time."""

    def __init__(self, setup: BatchSetup) -> None:
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._starting = asyncio.Lock()
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return self._writer is not None

    @property
    def is_needed(self) -> bool:
        """Whether there may be batching queues from before."""
        return bool(self._setup.database) or (Path(self._setup.folder) / FILE).exists()

    async def start(self) -> None:
        async with self._starting:
            if self._writer is not None or self._is_closed:
                return
            ours, theirs = socket.socketpair()
            with theirs:
                arguments = [msgspec.json.encode(self._setup).decode(), str(theirs.fileno())]
                self._process = await asyncio.to_thread(
                    subprocess.Popen,
                    [sys.executable, "-m", "corral.server.batches.process", *arguments],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._reading = asyncio.create_task(self._read(reader))
            log.info("batch_process_started", pid=self._process.pid)

    async def ask(self, verb: str, **about: Any) -> Any:
        """The answer. Raises `BatchAway` or `BatchProblem`."""
        await self.start()
        if self._writer is None:
            raise BatchAway("the server is shutting down")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(framed_message(encode_pack(AskBatch(number, verb, about))))
            await self._writer.drain()
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except (TimeoutError, OSError):
            raise BatchAway("the batch process does not answer") from None
        finally:
            self._asked.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (raw := await read_message(reader, _ANSWER_BYTES_MAX)) is not None:
            told = _told.decode(raw)
            answer = self._asked.get(told.number)
            if answer is None or answer.done():
                continue
            if told.problem is None:
                answer.set_result(told.answer)
            else:
                answer.set_exception(BatchProblem(*told.problem))
        self._lost()

    def _lost(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
            if not self._is_closed:
                log.warning("batch_process_ended", status=self._process.returncode)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(BatchAway("the batch process has ended"))

    async def close(self) -> None:
        """End the process; everything that was accepted is durable."""
        self._is_closed = True
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=1)
            self._reading.cancel()
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, 15)
            except subprocess.TimeoutExpired:
                os.kill(self._process.pid, 9)
                await asyncio.to_thread(self._process.wait)
