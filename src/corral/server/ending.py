"""How a server ends: in time, whatever its threads wait for, and without a trace of what was foreseen.

Knows threads, the process and the failures of journals. Knows nothing of what is being served.
"""

from __future__ import annotations

import asyncio
import os
import threading

import structlog

from corral.store.journal import JournalBusy, JournalFailed, JournalFenced, JournalUnusable

log = structlog.get_logger(__name__)

#: What is raised where the right to write has gone, or the database.
LOST = (JournalUnusable, JournalFailed, JournalFenced, JournalBusy)


class ServerStopped(Exception):
    """The journal cannot be written any more. Of what was not acknowledged nobody knows here whether it is in it."""


def traced(failure: BaseException) -> BaseException | None:
    """What to show the origin of: not of what was foreseen, and says itself what to do."""
    return None if isinstance(failure, LOST) else failure


def end_within(seconds: float) -> None:
    """The last resort: a process that is asked to end, or cannot go on, does end, whatever its threads wait for."""

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
        return  # whoever asked has left
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(ServerStopped(str(failure)))
