"""Reads that cost much: made one at a time, in small steps, and once for all who wait for the same.

Whoever asks while such a view is being made shares the next one with all others of the same rights who ask meanwhile:
no answer is older than its question, and any number of readers cost as much as one that never pauses. Between two steps
everybody else has a turn, so that submissions and reports never wait for longer than a step. Knows nothing of what is
viewed.
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
    """All heavy reads of one server."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next: dict[Hashable, asyncio.Task[bytes]] = {}  # wanted, and not begun
        self.made = 0

    async def of(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The view under this key, made after this was asked. Whoever leaves does not take it from the others."""
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
        """For a heavy read that nobody shares: one at a time with all others."""
        async with self._turn:
            yield


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """One after the other; whenever that has taken a moment, everybody else has a turn."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began > _STEP_S:
            await asyncio.sleep(0)
            began = time.perf_counter()
