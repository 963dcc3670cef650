"""A thread in which a carrier is called: one call after the other, and none of them can hold up or end the server.

Knows how to wait for an answer, and nothing of what is asked. A call that never returns costs this thread only; it is
a daemon, so that the server can end beside it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Caller:
    def __init__(self, name: str) -> None:
        self._errands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"carrier-{name}", daemon=True)
        self._thread.start()

    async def call(self, what: Callable[..., T], *about: Any) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def errand() -> None:
            try:
                result = what(*about)
            except BaseException as fault:  # whatever it is, it is told to whoever asked and to nobody else
                _tell(loop, answer, None, fault)
            else:
                _tell(loop, answer, result, None)

        self._errands.put(errand)
        return await answer

    def close(self) -> None:
        """No more calls; one that is under way is left to itself."""
        self._errands.put(None)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            errand()


def _tell(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], result: Any, fault: BaseException | None) -> None:
    def settle() -> None:
        if answer.done():
            return  # whoever asked has left
        if fault is None:
            answer.set_result(result)
        elif isinstance(fault, Exception):
            answer.set_exception(fault)
        else:
            answer.set_exception(RuntimeError(f"{type(fault).__name__}: {fault}"))

    with suppress(RuntimeError):  # the server has ended meanwhile
        loop.call_soon_threadsafe(settle)
