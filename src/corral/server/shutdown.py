"""Shutdown of a server: in time, whatever its threads wait for, and without tracebacks of expected failures.

Knows threads, the process and the failures of journals. Knows nothing about what is served.
"""

from __future__ import annotations

import asyncio
import os
import threading

import structlog

from corral.store.journal import JournalBusy, JournalFailed, JournalFenced, JournalUnusable

log = structlog.get_logger(__name__)

#: Raised when the server has lost the right to write, or its database.
LOST = (JournalUnusable, JournalFailed, JournalFenced, JournalBusy)


class ServerStopped(Exception):
    """The journal cannot be written any more. Whether unacknowledged records are in it is unknown."""


def traced(failure: BaseException) -> BaseException | None:
    """The failure if its traceback should be logged; None for expected failures, whose text says what to do."""
    return None if isinstance(failure, LOST) else failure


def end_within(seconds: float) -> None:
    """End the process after this time, even if its threads still wait for something."""

    def end() -> None:
        log.error("end_forced", after_s=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def first(task: asyncio.Task[None], *events: asyncio.Event) -> None:
    """Returns when the task is done, or one of the events has happened."""
    ends = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()


def settle(done: asyncio.Future[None], failure: BaseException | None) -> None:
    if done.done():
        return  # the caller was cancelled
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(ServerStopped(str(failure)))
