"""Health, metrics and usage."""

from __future__ import annotations

from functools import partial

import msgspec

import corral
from corral.server.api.handlers.views import copy_fields
from corral.server.api.http.problems import forbidden
from corral.server.api.http.request import ApiRequest, Content, Reply
from corral.server.api.http.shared_views import in_steps
from corral.server.auth import Verb, seen_queues
from corral.server.metrics import KIND
from corral.store.lookup import Lookup, UsageQuery
from corral.wire.api import HealthView, UsageLine, UsageView


async def health(request: ApiRequest) -> Reply:
    """Answered without a token, so it reveals very little."""
    service, vitals = request.service, request.service.vitals()
    has_failed = service.has_failed or not vitals.following
    return HealthView(
        status="failed" if has_failed else "ok" if service.is_ready else "starting",
        version=corral.__version__,
        role="leader" if service.leads else "standby",
        leader=service.leader,
        **msgspec.structs.asdict(vitals),
    )


async def metrics(request: ApiRequest) -> Reply:
    """Metrics cover all queues, so only users who may see all of them get them."""
    if request.user and not request.may(Verb.METRICS_READ):
        raise forbidden(Verb.METRICS_READ)
    return Content(await request.shared.views.of("metrics", partial(_metrics, request)), KIND)


async def _metrics(request: ApiRequest) -> bytes:
    """Read the state here, in steps; format the text in a thread."""
    metrics = request.shared.metrics
    metrics.now_ms = request.service.now_ms()
    families = [family async for family in in_steps(metrics.families())]
    return await request.shared.look(metrics.written, families)


async def usage(request: ApiRequest) -> Reply:
    query = copy_fields(
        UsageQuery,
        request.query,
        queues=seen_queues(request.service.accounts, request.principal, Verb.USAGE_READ),
        users_own=request.user,
        now_ms=request.service.now_ms(),
    )
    return await request.shared.look(_usage, request.service.lookup, query)


def _usage(lookup: Lookup, query: UsageQuery) -> UsageView:
    lines = tuple(copy_fields(UsageLine, row) for row in lookup.usage(query))
    lost = sum(line.lost_gpu_ms for line in lines)
    return UsageView(lines=lines, gpu_ms=sum(line.gpu_ms for line in lines), lost_gpu_ms=lost)
