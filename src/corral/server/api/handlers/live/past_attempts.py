"""Attempts of all jobs in a time, past and present, and starts that are reserved: what a Gantt chart shows."""

from __future__ import annotations

from collections.abc import Iterator

from corral.server.api.handlers.jobs import known_owner, load_owners, sees_gang
from corral.server.api.handlers.views import seat_views
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.api.http.shared_views import in_steps
from corral.store.lookup import AttemptRow
from corral.wire.api import AttemptLine, AttemptList, ReservedStart

_DAY_MS = 86_400_000


async def attempts(request: ApiRequest) -> Reply:
    wanted, now_ms = request.query, request.service.now_ms()
    until_ms = now_ms if wanted.until_ms is None else wanted.until_ms
    since_ms = until_ms - _DAY_MS if wanted.since_ms is None else wanted.since_ms
    rows = await request.shared.look(request.service.lookup.attempts_between, since_ms, until_ms, wanted.limit)
    await load_owners(request.shared, {row.job for row in rows})
    shown = [_line(request, row) async for row in in_steps(rows) if sees_gang(request, row.gang)]
    return AttemptList(at_ms=now_ms, attempts=tuple(shown), reserved=tuple(_reserved(request)))


def _line(request: ApiRequest, row: AttemptRow) -> AttemptLine:
    queue, user = known_owner(request.shared, row.job) or ("", "")
    job = request.service.state.jobs.get(row.job)
    return AttemptLine(
        gang=row.gang,
        job=row.job,
        name="" if job is None else job.spec.name,
        queue=queue,
        user=user,
        attempt=row.attempt,
        placed_ms=row.placed_ms,
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        failure=row.failure,
        seats=tuple(seat_views(row.seats)),
    )


def _reserved(request: ApiRequest) -> Iterator[ReservedStart]:
    state = request.service.state
    for name, reservation in list(state.reservations.items()):
        gang = state.gangs.get(name)
        if gang is not None and sees_gang(request, name):
            yield ReservedStart(
                gang=name,
                job=gang.job,
                name=state.jobs[gang.job].spec.name,
                queue=gang.queue,
                user=gang.user,
                starts_ms=reservation.at_ms,
                ends_ms=reservation.until_ms,
                seats=tuple(seat_views(reservation.seats)),
            )
