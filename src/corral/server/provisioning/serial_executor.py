"""A thread for calls of one provider: one call at a time, and none of them can block or end the server.

Knows how to wait for a result, and nothing about the calls. A call that never returns blocks only this thread; it is a
daemon, so that the server can end.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class SerialExecutor:
    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"provider-{name}", daemon=True)
        self._thread.start()

    async def call(self, what: Callable[..., T], *about: Any) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                result = what(*about)
            except BaseException as fault:  # every error goes to the caller
                _settle(loop, answer, None, fault)
            else:
                _settle(loop, answer, result, None)

        self._calls.put(call)
        return await answer

    def close(self) -> None:
        """Accept no more calls; one that is running is abandoned."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], result: Any, fault: BaseException | None
) -> None:
    def settle() -> None:
        if answer.done():
            return  # the caller was cancelled
        if fault is None:
            answer.set_result(result)
        elif isinstance(fault, Exception):
            answer.set_exception(fault)
        else:
            answer.set_exception(RuntimeError(f"{type(fault).__name__}: {fault}"))

    with suppress(RuntimeError):  # the server has ended meanwhile
        loop.call_soon_threadsafe(settle)
