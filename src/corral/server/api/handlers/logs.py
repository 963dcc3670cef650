"""What tasks wrote: a part of a log, or all of it as it grows, over as many runs as there are.

Logs are bytes and are told as bytes; where a part lies is told in headers. Knows nothing of how logs are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from corral.backends.base import LogPart, TaskKey
from corral.server.api.entry.asking import Ask, Content, Flow, Reply
from corral.server.api.entry.problems import Unable, not_found
from corral.server.api.entry.seam import DistantLogs
from corral.server.api.handlers.jobs import seen_job
from corral.server.auth import Verb
from corral.wire.api import LOG_ATTEMPT, LOG_GANG, LOG_NEXT, LOG_OFFSET, LOG_OVER

KIND = "application/octet-stream"
_CHUNK = 256 << 10
_POLL_S_MAX = 0.5


async def read_log(ask: Ask) -> Reply:
    row = await seen_job(ask, Verb.LOGS_READ)
    wanted = ask.query
    gang = await _gang(ask, row.id, wanted.gang)
    if wanted.follow:

        def holds() -> bool:
            return ask.may(Verb.LOGS_READ, row.queue, row.user)

        return Flow(_follow(ask, row.id, gang), KIND, holds, ((LOG_GANG, gang),))
    attempt = wanted.attempt or await _newest(ask, row.id, gang)
    offset = wanted.offset if wanted.tail is None else -wanted.tail
    part = await _part(ask, TaskKey(gang, attempt, wanted.task), offset, wanted.limit) if attempt else None
    if part is None:
        why = "nothing of it has run yet" if not attempt else f"there is no log of task {wanted.task}, run {attempt}"
        raise Unable(404, "no_such_log", why, "see the runs of the job, and `attempt`, `task` and `gang`")
    headers = (
        (LOG_GANG, gang),
        (LOG_ATTEMPT, str(attempt)),
        (LOG_OFFSET, str(part.offset)),
        (LOG_NEXT, str(part.next_offset)),
        (LOG_OVER, "true" if part.is_over else "false"),
    )
    return Content(part.data, KIND, headers)


async def _gang(ask: Ask, job: str, wanted: str) -> str:
    """The id of the gang that is meant: by role, by number of the array element, by both, or the first one."""
    live = ask.service.state.jobs.get(job)
    if live is not None:
        gangs = live.gangs
    else:
        rows = await ask.shared.look(ask.service.lookup.attempts, job)
        gangs = list(dict.fromkeys(row.gang for row in rows))
    index, slash, role = wanted.partition("/")
    if not wanted:
        matches = gangs
    elif wanted in gangs:
        return wanted
    elif index.isdecimal() and index.isascii():
        matches = [g for g in gangs if g.startswith(f"{job}[{index}]/") and (not slash or g.endswith(f"/{role}"))]
    else:
        matches = [g for g in gangs if g.endswith(f"/{wanted}")]
    if not matches:
        raise not_found("gang", wanted or job)
    return matches[0]


async def _newest(ask: Ask, job: str, gang: str) -> int:
    live = ask.service.state.gangs.get(gang)
    if live is not None:
        return live.attempt
    rows = await ask.shared.look(ask.service.lookup.attempts, job)
    return max((row.attempt for row in rows if row.gang == gang), default=0)


async def _part(ask: Ask, key: TaskKey, offset: int, limit: int) -> LogPart | None:
    """No thread is held while a machine elsewhere is asked."""
    look, logs, stream = ask.shared.look_at_logs, ask.service.backend, ask.query.stream
    if not isinstance(logs, DistantLogs):
        return await look(logs.read_log, key, stream, offset, limit)
    asked = await look(logs.ask_log, key, stream, offset, limit)
    if asked is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(logs.log_wait_s):
                # shielded: others wait for the same answer
                part = await asyncio.shield(asyncio.wrap_future(asked))
            if part is not None:
                return part
    return await look(logs.kept_log, key, stream, offset, limit)


async def _follow(ask: Ask, job: str, gang: str) -> AsyncGenerator[bytes]:
    """All that comes, until the run that was asked for is over, or the gang, if none was."""
    wanted, poll_s = ask.query, ask.shared.settings.log_poll_s
    attempt = wanted.attempt or await _newest(ask, job, gang)
    offset = wanted.offset if wanted.tail is None else -wanted.tail
    wait_s = poll_s
    while ask.is_alive:
        part = await _part(ask, TaskKey(gang, attempt, wanted.task), offset, _CHUNK) if attempt else None
        if part is not None:
            offset = part.next_offset
            if part.data:
                wait_s = poll_s
                yield part.data
                continue
        live = ask.service.state.gangs.get(gang)
        has_ended = live is None or live.is_over or live.attempt > attempt
        if (part is None and has_ended) or (part is not None and part.is_over):
            if wanted.attempt or live is None or live.is_over:
                return
            if live.attempt > attempt:
                attempt, offset = live.attempt, 0
                continue
        await asyncio.sleep(wait_s)
        wait_s = min(_POLL_S_MAX, wait_s * 1.5)
