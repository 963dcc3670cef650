"""The line: waiting gangs in the order in which they are served, with the reason why each waits."""

from __future__ import annotations

from corral.core.gang_id import job_of
from corral.core.model import GangState
from corral.server.api.handlers.jobs import sees_gang
from corral.server.api.handlers.views import reason_views
from corral.server.api.http.request import ApiRequest, Reply, accepted
from corral.server.auth import is_among
from corral.wire.api import LinePlace, LineView

_PLACES_MAX = 2_000  # places that are looked at for one answer, also if the user may see few of them
_REASONS_MAX = 200


async def line(request: ApiRequest) -> Reply:
    state, wanted = request.service.state, request.query
    order = accepted(await request.service.line(_PLACES_MAX))
    places = [(place, gang) for place, gang in enumerate(order, 1) if _is_shown(request, gang)][: wanted.limit]
    outlooks = await request.service.outlooks([gang for _, gang in places[:_REASONS_MAX]]) if places else {}
    now_ms = request.service.now_ms()

    def sees(other: str) -> bool:
        return sees_gang(request, other)

    found = []
    for place, name in places:
        gang, outlook = state.gangs.get(name), outlooks.get(name)
        if gang is None or gang.state is not GangState.WAITING:
            continue  # it has started meanwhile
        reasons = [] if outlook is None else list(reason_views(outlook.hold, now_ms, sees))
        found.append(
            LinePlace(
                place=place,
                gang=name,
                job=gang.job,
                name=state.jobs[gang.job].spec.name,
                queue=gang.queue,
                user=gang.user,
                priority=gang.priority,
                gpus=gang.demand.tasks * gang.demand.task.gpus,
                waiting_since_ms=gang.waiting_since_ms,
                reason=reasons[0].text if reasons else "",
                starts_ms=request.service.reserved_start_ms(name) if outlook is None else outlook.starts_ms,
            )
        )
    return LineView(at_ms=now_ms, waiting=state.backlog.count, gangs=tuple(found))


def _is_shown(request: ApiRequest, name: str) -> bool:
    gang = request.service.state.gangs.get(name)
    if gang is None or not sees_gang(request, job_of(name)):
        return False
    return request.query.queue is None or is_among(gang.queue, (request.query.queue,))
