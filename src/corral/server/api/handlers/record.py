"""The server about itself and its past: health, metrics, usage, and the description of the interface."""

from __future__ import annotations

from functools import partial

import msgspec

import corral
from corral.server.api.entry.asking import Ask, Content, Reply
from corral.server.api.entry.problems import forbidden
from corral.server.api.entry.shared_views import in_steps
from corral.server.auth import Verb, seen_queues
from corral.server.metrics import KIND
from corral.store.lookup import Lookup, UsageQuery
from corral.wire.api import HealthView, UsageLine, UsageView


async def health(ask: Ask) -> Reply:
    """Told to everybody, and therefore next to nothing."""
    service, vitals = ask.service, ask.service.vitals()
    has_failed = service.has_failed or not vitals.following
    return HealthView(
        status="failed" if has_failed else "ok" if service.is_ready else "starting",
        version=corral.__version__,
        role="leader" if service.leads else "standby",
        leader=service.leader,
        **msgspec.structs.asdict(vitals),
    )


async def metrics(ask: Ask) -> Reply:
    """Of all queues, so for those who may see all of them."""
    if ask.user and not ask.may(Verb.METRICS_READ):
        raise forbidden(Verb.METRICS_READ)
    return Content(await ask.shared.views.of("metrics", partial(_metrics, ask)), KIND)


async def _metrics(ask: Ask) -> bytes:
    """What the state says is looked at here, in steps; as text it is written in a thread."""
    metrics = ask.shared.metrics
    metrics.now_ms = ask.service.now_ms()
    told = [family async for family in in_steps(metrics.families())]
    return await ask.shared.look(metrics.written, told)


async def usage(ask: Ask) -> Reply:
    wanted = ask.query
    query = UsageQuery(
        queues=seen_queues(ask.service.accounts, ask.principal, Verb.USAGE_READ),
        users_own=ask.user, queue=wanted.queue, user=wanted.user, since=wanted.since, until=wanted.until,
        now_ms=ask.service.now_ms(),
    )  # fmt: skip
    return await ask.shared.look(_usage, ask.service.lookup, query)


def _usage(lookup: Lookup, query: UsageQuery) -> UsageView:
    lines = tuple(
        UsageLine(
            queue=row.queue, user=row.user, day=row.day, gpu_ms=row.gpu_ms, lost_gpu_ms=row.lost_gpu_ms, jobs=row.jobs
        )
        for row in lookup.usage(query)
    )
    lost = sum(line.lost_gpu_ms for line in lines)
    return UsageView(lines=lines, gpu_ms=sum(line.gpu_ms for line in lines), lost_gpu_ms=lost)
