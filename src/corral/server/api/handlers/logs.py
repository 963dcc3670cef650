"""Logs of tasks: read a part of a log, or follow it as it grows, across all attempts.

Logs are sent as bytes; headers say where a part lies. Knows nothing about how logs are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from corral.core.gang_id import index_of, role_of
from corral.runtime.base import LogPart, TaskKey
from corral.server.api.handlers.jobs import seen_job
from corral.server.api.http.contracts import DistantLogs
from corral.server.api.http.problems import ApiError, not_found
from corral.server.api.http.request import ApiRequest, Content, Reply, StreamAnswer
from corral.server.auth import Verb
from corral.wire.api import LOG_ATTEMPT, LOG_GANG, LOG_NEXT, LOG_OFFSET, LOG_OVER

KIND = "application/octet-stream"
_CHUNK = 256 << 10
_POLL_S_MAX = 0.5


async def read_log(request: ApiRequest) -> Reply:
    row = await seen_job(request, Verb.LOGS_READ)
    wanted = request.query
    gang = await _gang(request, row.id, wanted.gang)
    if wanted.follow:

        def holds() -> bool:
            return request.may(Verb.LOGS_READ, row.queue, row.user)

        return StreamAnswer(_follow(request, row.id, gang), KIND, holds, ((LOG_GANG, gang),))
    attempt = wanted.attempt or await _newest(request, row.id, gang)
    offset = wanted.offset if wanted.tail is None else -wanted.tail
    key = TaskKey(gang, attempt, wanted.task)
    part = await read_part(request, key, wanted.stream, offset, wanted.limit) if attempt else None
    if part is None:
        why = f"there is no log of task {wanted.task}, attempt {attempt}" if attempt else f"{gang} has not started yet"
        hint = "list the attempts of the job, then give `attempt`, `task` and `gang`"
        raise ApiError(404, "no_such_log", why, hint)
    headers = (
        (LOG_GANG, gang),
        (LOG_ATTEMPT, str(attempt)),
        (LOG_OFFSET, str(part.offset)),
        (LOG_NEXT, str(part.next_offset)),
        (LOG_OVER, "true" if part.is_over else "false"),
    )
    return Content(part.data, KIND, headers)


async def _gang(request: ApiRequest, job: str, wanted: str) -> str:
    """The id of the first gang that is meant."""
    return (await matching_gangs(request, job, wanted))[0]


async def matching_gangs(request: ApiRequest, job: str, wanted: str) -> list[str]:
    """The ids of the requested gangs: given by role, by array index or by both; all if none is given."""
    live = request.service.state.jobs.get(job)
    if live is not None:
        gangs = list(live.gangs)
    else:
        rows = await request.shared.look(request.service.lookup.attempts, job)
        gangs = list(dict.fromkeys(row.gang for row in rows))
    index, slash, role = wanted.partition("/")
    if not wanted:
        matches = gangs
    elif wanted in gangs:
        return [wanted]
    elif index.isdecimal() and index.isascii():
        matches = [g for g in gangs if str(index_of(g)) == index and (not slash or role_of(g) == role)]
    else:
        matches = [g for g in gangs if role_of(g) == wanted]
    if not matches:
        raise not_found("gang", wanted or job)
    return matches


async def _newest(request: ApiRequest, job: str, gang: str) -> int:
    live = request.service.state.gangs.get(gang)
    if live is not None:
        return live.attempt
    rows = await request.shared.look(request.service.lookup.attempts, job)
    return max((row.attempt for row in rows if row.gang == gang), default=0)


async def read_part(request: ApiRequest, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
    """Read a part of a log. No thread waits while a remote node is asked."""
    look = request.shared.look_at_logs
    logs = request.service.backend
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


async def _follow(request: ApiRequest, job: str, gang: str) -> AsyncGenerator[bytes]:
    """Yield output as it comes, until the requested attempt ends; if none was requested, until the gang ends."""
    wanted, poll_s = request.query, request.shared.settings.log_poll_s
    attempt = wanted.attempt or await _newest(request, job, gang)
    offset = wanted.offset if wanted.tail is None else -wanted.tail
    wait_s = poll_s
    while request.is_alive:
        key = TaskKey(gang, attempt, wanted.task)
        part = await read_part(request, key, wanted.stream, offset, _CHUNK) if attempt else None
        if part is not None:
            offset = part.next_offset
            if part.data:
                wait_s = poll_s
                yield part.data
                continue
        live = request.service.state.gangs.get(gang)
        has_ended = live is None or live.is_over or live.attempt > attempt
        if (part is None and has_ended) or (part is not None and part.is_over):
            if wanted.attempt or live is None or live.is_over:
                return
            if live.attempt > attempt:
                attempt, offset = live.attempt, 0
                continue
        await asyncio.sleep(wait_s)
        wait_s = min(_POLL_S_MAX, wait_s * 1.5)
