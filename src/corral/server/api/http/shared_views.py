"""Expensive reads: built one at a time, in small steps, and once for all clients that wait for the same view.

Requests that come while a view is being built share the next one with all others of the same rights. So no answer is
older than its request, and any number of readers cost as much as one that never pauses. Between two steps other
requests get a turn, so that submissions and reports never wait for longer than a step. Knows nothing about the content.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

T = TypeVar("T")

JSON = "application/json"
_STEP_S = 0.002

encode_json = msgspec.json.Encoder().encode


class SharedViews:
    """All expensive reads of one server."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next: dict[Hashable, asyncio.Task[bytes]] = {}  # requested and not begun
        self.made = 0

    async def of(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The view under this key, built after this call. A client that disconnects does not cancel it for others."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.ensure_future(self._make(key, make))
        return await asyncio.shield(task)

    async def _make(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        try:
            async with self._turn:
                del self._next[key]
                self.made += 1
                return await make()
        finally:
            if self._next.get(key) is asyncio.current_task():  # it was cancelled before it began
                del self._next[key]

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """For an expensive read that is not shared: takes turns with all others."""
        async with self._turn:
            yield


class Pace:
    """For work that many need again and again: one at a time, and all of it together at most this part of the time of
    the event loop, however many need it. What more is needed comes later, in turn."""

    def __init__(self, part: float) -> None:
        self._pauses = 1 / part - 1  # the pause after each turn, in times that it took
        self._turn = asyncio.Lock()
        self._free_s = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._free_s - time.monotonic()))
            began = time.thread_time()
            try:
                yield
            finally:
                self._free_s = time.monotonic() + self._pauses * (time.thread_time() - began)


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; whenever a step has taken too long, let the event loop run other tasks."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began > _STEP_S:
            await asyncio.sleep(0)
            began = time.perf_counter()
