"""Timers: time limits, grace periods, start timeouts, deadlines, retries; and ended jobs are dropped from memory.

Runs independently of planning: a planner that hangs or fails delays nothing here. Sleeps until something is due and is
woken when that moves earlier. Knows when; the engine decides what follows. Long work is done in slices, so that
requests and reports are answered in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice

from corral.core.events import JobEnded
from corral.core.facts import Ticked
from corral.core.intake.commands import forget
from corral.core.intake.refusal import Refusal
from corral.server.durability import Batch
from corral.server.loop import SYSTEM, Loop

_AT_ONCE = 200  # gangs, or ended jobs, before the event loop runs other tasks
_RETRY_MS = 1_000  # a timer that is still due after its turn is tried again after this time
_SLEEP_MS_MAX = 3_600_000
_NEVER_MS = 1 << 62


class Timers:
    """``keep_ended`` jobs stay in memory after their end, for ``keep_ended_ms``."""

    def __init__(self, loop: Loop) -> None:
        self.keep_ended = 1_000
        self.keep_ended_ms = 86_400_000
        self._loop = loop
        self._state = loop.known.state
        self._now_ms = loop.clock.now_ms
        self._ended = deque((self._now_ms(), job.id) for job in self._state.jobs.values() if job.is_over)
        self._moved = asyncio.Event()
        self._wakes_ms = 0  # when it wakes up
        self._retry_ms = 0
        loop.listeners.append(self._notice)

    def _notice(self, batch: Batch) -> None:
        """Something has changed: wake up if a timer is due earlier than before."""
        self._ended += [(event.at_ms, event.job) for event in batch.events if isinstance(event, JobEnded)]
        if self._next_ms() < self._wakes_ms:
            self._moved.set()

    async def run(self) -> None:
        while True:
            self._wakes_ms, now_ms = self._next_ms(), self._now_ms()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(0, self._wakes_ms - now_ms), _SLEEP_MS_MAX) / 1000):
                    await self._moved.wait()
            self._moved.clear()
            self._wakes_ms = 0  # it is awake: changes need not wake it
            self._turn(self._now_ms())
            await asyncio.sleep(0)

    def _next_ms(self) -> int:
        """When the next timer is due."""
        due_ms = self._state.next_timer_ms()
        next_ms = _NEVER_MS if due_ms is None else max(due_ms, self._retry_ms)
        if len(self._ended) > self.keep_ended:
            return 0
        if self._ended:
            return min(next_ms, self._ended[0][0] + self.keep_ended_ms + 1)
        return next_ms

    def _turn(self, now_ms: int) -> None:
        state = self._state
        due_ms = state.next_timer_ms()
        if due_ms is not None and due_ms <= now_ms and now_ms >= self._retry_ms:
            gangs = [gang.id for gang in islice(state.due(now_ms), _AT_ONCE)]
            before = state.version
            for gang in gangs:
                self._loop.take_fact(Ticked(gang))
            due_ms = state.next_timer_ms()
            is_stuck = due_ms is not None and due_ms <= now_ms and (state.version == before or len(gangs) < _AT_ONCE)
            self._retry_ms = now_ms + _RETRY_MS if is_stuck else 0
        for _ in range(_AT_ONCE):
            if not self._ended or not self._may_be_forgotten(now_ms):
                break
            self._forget(self._ended.popleft()[1])

    def _may_be_forgotten(self, now_ms: int) -> bool:
        return len(self._ended) > self.keep_ended or self._ended[0][0] + self.keep_ended_ms < now_ms

    def _forget(self, job: str) -> None:
        """Drop an ended job from memory."""
        now_ms = self._now_ms()
        events = forget(self._state, job, now_ms)
        if not isinstance(events, Refusal):
            self._loop.take(SYSTEM, events, now_ms)
