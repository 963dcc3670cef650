"""The server's side of the planner: start its process, let it follow, ask it, begin anew when it dies.

Knows how to ask. What is answered is made in ``thinking``, in a process of its own.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from corral.core.model import JobSpec
from corral.core.plan import Plan
from corral.server.planning import frames
from corral.server.planning.blame import Search, Verdict
from corral.server.planning.thinking import Answer, Question
from corral.wire.config import PolicyChoice

_FOLLOW_AT_ONCE = 4096


class PlannerLost(Exception):
    """The planner's process is gone. Begin it anew with an image of the present."""


class ThoughtFailed(Exception):
    """The planner could not answer, which is a fault of the program. It still follows."""


class PlannerHung(PlannerLost):
    """The planner has not answered in time."""


class Planner:
    """One process. Questions are answered in the order in which they were asked."""

    program = "corral.server.planning.thinking"

    def __init__(self, policy: PolicyChoice) -> None:
        self._policy = policy
        self._process: Process | None = None
        self._asked: deque[asyncio.Future[bytes]] = deque()
        self._unsent: list[bytes] = []
        self._can_hear = False
        self._listener: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[bytes] | None = None

    async def begin(self, image: bytes, after: Sequence[bytes] = ()) -> None:
        """Start the process with this knowledge and the events after it; what was asked of an earlier one fails."""
        self._unsent = []  # the image has them; what comes from now on is not in it
        await self.close()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self.program, msgspec.json.encode(self._policy).decode(),
            stdin=PIPE, stdout=PIPE, start_new_session=True,
        )  # fmt: skip
        self._can_hear = True
        self._listener = asyncio.create_task(self._listen(self._process))
        self._send(frames.BEGIN, image)
        if after:
            self._send(frames.FOLLOW, frames.pack(after))
        self._ready = self._put(frames.READY, b"")
        self._ready.add_done_callback(_retrieve)

    async def ready(self) -> None:
        """Returns when it knows all that it was begun with: loading a large state takes its time."""
        if self._ready is not None:
            await asyncio.shield(self._ready)

    def follow(self, events: list[bytes]) -> None:
        """Events, encoded, in order. They travel with the next question, or when there are many."""
        self._unsent += events
        if len(self._unsent) >= _FOLLOW_AT_ONCE and self._can_hear:
            with suppress(PlannerLost):  # whoever asks next finds out, and begins it anew with all there is
                self._flush()

    async def plan(self, now_ms: int) -> Plan:
        return msgspec.json.decode(await self._ask(frames.PLAN, msgspec.json.encode(now_ms)), type=Plan)

    async def blame(self, now_ms: int, patience_s: float) -> Verdict:
        """Which jobs in line make planning fail; each trial may take so long."""
        asked = msgspec.json.encode(Search(now_ms, patience_s))
        return msgspec.json.decode(await self._ask(frames.BLAME, asked), type=Verdict)

    async def why(self, gang: str, now_ms: int) -> Answer:
        return await self._question(frames.WHY, Question(now_ms, gang))

    async def prospects(self, specs: dict[str, JobSpec], user: str, now_ms: int) -> Answer:
        return await self._question(frames.TRY, Question(now_ms, user=user, specs=specs))

    async def needs(self, now_ms: int) -> dict[str, int]:
        """By fleet that follows demand: how many nodes it should have."""
        return msgspec.json.decode(await self._ask(frames.NEEDS, msgspec.json.encode(now_ms)), type=dict[str, int])

    async def image(self) -> bytes:
        """All that is known after what it was told to follow so far."""
        return await self._ask(frames.IMAGE, b"")

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            process.kill()  # it has nothing to lose, and may be stuck
        await process.wait()
        if self._listener is not None:
            await self._listener

    async def _question(self, kind: bytes, question: Question) -> Answer:
        return msgspec.json.decode(await self._ask(kind, msgspec.json.encode(question)), type=Answer)

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
            self._send(frames.FOLLOW, frames.pack(unsent))

    def _send(self, kind: bytes, body: bytes) -> None:
        if not self._can_hear or self._process is None or self._process.stdin is None:
            raise PlannerLost("the planner is not running")
        try:
            self._process.stdin.write(frames.frame(kind, body))
        except RuntimeError as closed:  # the pipe broke, and the end was not heard of yet
            raise PlannerLost("the planner has ended") from closed

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                kind, body = await frames.receive_frame(process.stdout)
                answer = self._asked.popleft()
                if answer.done():
                    continue  # whoever asked has left
                if kind == frames.FAILED:
                    answer.set_exception(ThoughtFailed(body.decode(errors="replace")))
                else:
                    answer.set_result(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._can_hear = False
            asked, self._asked = self._asked, deque()
            for answer in asked:
                if not answer.done():
                    answer.set_exception(PlannerLost("the planner has ended"))


def _retrieve(answer: asyncio.Future[bytes]) -> None:
    """That nobody waited for it is no fault."""
    if not answer.cancelled():
        answer.exception()
