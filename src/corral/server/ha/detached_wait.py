"""Calls that may never return, in threads that do not block the end of the process.

Knows threads. At exit the process waits for asyncio's own threads, but not for these.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from corral.store.journal import JournalAway

T = TypeVar("T")


async def apart(call: Callable[[], T], within_s: float, late: Callable[[T], None] | None = None) -> T:
    """The result of the call. A call that takes too long, or whose caller was cancelled, is abandoned; if it returns
    later, its result is passed to ``late``."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, fault: BaseException | None) -> None:
        if done.done():
            if fault is None and late is not None:
                threading.Thread(target=late, args=(result,), daemon=True).start()
        elif fault is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(fault)

    def run() -> None:
        result, fault = None, None
        try:
            result = call()
        except BaseException as wrong:
            fault = wrong
        with suppress(RuntimeError):  # the process has ended meanwhile
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=run, name="corral-apart", daemon=True).start()
    try:
        async with asyncio.timeout(within_s):
            return await done
    except TimeoutError:
        raise JournalAway(f"the database did not answer within {within_s:g} s", "silent") from None
