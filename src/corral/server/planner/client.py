"""The server's side of the planner: start its process, send it events, ask it, restart it when it dies.

Knows how to ask. Answers are made in ``process``, in a process of its own.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from corral.core.model import JobSpec, QueueSpec
from corral.core.plan import Plan
from corral.server.planner import pipe_frames
from corral.server.planner.bisect import BisectResult, Search
from corral.server.planner.questions import PlannerAnswer, PlannerQuestion
from corral.wire.config import PolicyChoice

_FOLLOW_AT_ONCE = 4096


class PlannerLost(Exception):
    """The planner process has ended. Restart it with an image of the current state."""


class PlannerError(Exception):
    """The planner failed with an error, which is a bug. The process still runs and follows the journal."""


class PlannerHung(PlannerLost):
    """The planner has not answered in time."""


class Planner:
    """One planner process. Requests are answered in order."""

    program = "corral.server.planner.process"

    def __init__(self, policy: PolicyChoice) -> None:
        self._policy = policy
        self._process: Process | None = None
        self._asked: deque[asyncio.Future[bytes]] = deque()
        self._unsent: list[bytes] = []
        self._can_hear = False
        self._listener: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[bytes] | None = None

    async def begin(self, image: bytes, after: Sequence[bytes] = ()) -> None:
        """Start the process with this image and the events after it; open requests to an earlier process fail."""
        self._unsent = []  # the image contains them; later events are not in it
        await self.close()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.program,
            msgspec.json.encode(self._policy).decode(),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        self._can_hear = True
        self._listener = asyncio.create_task(self._listen(self._process))
        self._send(pipe_frames.BEGIN, image)
        if after:
            self._send(pipe_frames.FOLLOW, pipe_frames.pack(after))
        self._ready = self._put(pipe_frames.READY, b"")
        self._ready.add_done_callback(_retrieve)

    async def ready(self) -> None:
        """Return when it has loaded the image and the events; a large state takes time."""
        if self._ready is not None:
            await asyncio.shield(self._ready)

    def follow(self, events: list[bytes]) -> None:
        """Pass encoded events, in order. They are sent with the next request, or when there are many."""
        self._unsent += events
        if len(self._unsent) >= _FOLLOW_AT_ONCE and self._can_hear:
            with suppress(PlannerLost):  # the next request finds out and restarts it with a new image
                self._flush()

    async def plan(self, now_ms: int) -> Plan:
        return msgspec.json.decode(await self._ask(pipe_frames.PLAN, msgspec.json.encode(now_ms)), type=Plan)

    async def blame(self, now_ms: int, patience_s: float) -> BisectResult:
        """The waiting jobs that make planning fail. ``patience_s``: time limit of one trial."""
        asked = msgspec.json.encode(Search(now_ms, patience_s))
        return msgspec.json.decode(await self._ask(pipe_frames.BLAME, asked), type=BisectResult)

    async def why(self, gang: str, now_ms: int) -> PlannerAnswer:
        return await self._question(pipe_frames.WHY, PlannerQuestion(now_ms, gang))

    async def prospects(self, specs: dict[str, JobSpec], user: str, now_ms: int) -> PlannerAnswer:
        return await self._question(pipe_frames.TRY, PlannerQuestion(now_ms, user=user, specs=specs))

    async def with_settings(self, spec: QueueSpec, now_ms: int) -> PlannerAnswer:
        return await self._question(pipe_frames.TRY, PlannerQuestion(now_ms, queue=spec))

    async def outlooks(self, gangs: Sequence[str], now_ms: int) -> PlannerAnswer:
        return await self._question(pipe_frames.OUTLOOK, PlannerQuestion(now_ms, gangs=tuple(gangs)))

    async def line(self, most: int, now_ms: int) -> PlannerAnswer:
        return await self._question(pipe_frames.LINE, PlannerQuestion(now_ms, most=most))

    async def needs(self, now_ms: int) -> dict[str, int]:
        """The number of nodes that each fleet with automatic scaling should have."""
        return msgspec.json.decode(await self._ask(pipe_frames.NEEDS, msgspec.json.encode(now_ms)), type=dict[str, int])

    async def image(self) -> bytes:
        """An image of the state after all events passed so far."""
        return await self._ask(pipe_frames.IMAGE, b"")

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            process.kill()  # it has no data to save, and may be stuck
        await process.wait()
        if self._listener is not None:
            await self._listener

    async def _question(self, kind: bytes, question: PlannerQuestion) -> PlannerAnswer:
        return msgspec.json.decode(await self._ask(kind, msgspec.json.encode(question)), type=PlannerAnswer)

    async def _ask(self, kind: bytes, body: bytes) -> bytes:
        self._flush()
        return await self._put(kind, body)

    def _put(self, kind: bytes, body: bytes) -> asyncio.Future[bytes]:
        self._send(kind, body)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        return answer

    def _flush(self) -> None:
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._send(pipe_frames.FOLLOW, pipe_frames.pack(unsent))

    def _send(self, kind: bytes, body: bytes) -> None:
        if not self._can_hear or self._process is None or self._process.stdin is None:
            raise PlannerLost("the planner is not running")
        try:
            self._process.stdin.write(pipe_frames.frame(kind, body))
        except RuntimeError as closed:  # the pipe is broken, and the end was not noticed yet
            raise PlannerLost("the planner has ended") from closed

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                kind, body = await pipe_frames.receive_frame(process.stdout)
                answer = self._asked.popleft()
                if answer.done():
                    continue  # the caller was cancelled
                if kind == pipe_frames.FAILED:
                    answer.set_exception(PlannerError(body.decode(errors="replace")))
                else:
                    answer.set_result(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._can_hear = False
            asked, self._asked = self._asked, deque()
            for answer in asked:
                if not answer.done():
                    answer.set_exception(PlannerLost("the planner has ended"))


def _retrieve(answer: asyncio.Future[bytes]) -> None:
    """Mark the exception as retrieved: often no caller waits for it."""
    if not answer.cancelled():
        answer.exception()
