"""Health, metrics, usage and goodput.

Goodput of a job is folded from its events in the journal, of all jobs as they happen; the simulator has the same fold.
"""

from __future__ import annotations

from functools import partial

import msgspec

import corral
from corral.checkpoints.interval import advise, mtbf_of_nodes_s
from corral.core.goodput import QUEUE, REPAIR, START, GangGoodput, Goodput, ratio_ppm
from corral.server.api.handlers.cluster import check_sees_nodes
from corral.server.api.handlers.jobs import seen_job
from corral.server.api.handlers.views import copy_fields
from corral.server.api.http.problems import forbidden
from corral.server.api.http.request import ApiRequest, Content, Reply
from corral.server.api.http.shared_views import in_steps
from corral.server.auth import Verb, seen_queues
from corral.server.metrics import KIND
from corral.store.lookup import Lookup, UsageQuery
from corral.wire.api import GoodputView, HealthView, IntervalView, UsageLine, UsageView
from corral.wire.codec import decode

_AT_ONCE = 500
_READ_MAX = 200_000  # records of one job
_RESTART_S = 60.0  # as long as no restart was measured


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


async def job_goodput(request: ApiRequest) -> Reply:
    row = await seen_job(request, Verb.JOBS_READ)
    goodput = Goodput()
    after = 0
    for _ in range(_READ_MAX // _AT_ONCE):
        part = await request.shared.look(request.service.lookup.records_of, row.id, after, _AT_ONCE)
        async with request.shared.views.turn():
            async for record in in_steps(part.records):
                goodput.take(decode(record.format, record.body))
        after = part.upto
        if after >= part.head:
            break
    now_ms = request.service.now_ms()
    spent = goodput.gpu_ms(now_ms)
    gangs = list(goodput.gangs.values())
    if not gangs:
        waited_ms = (row.ended_ms or now_ms) - row.submitted_ms
        return GoodputView(ratio_ppm=0, ms={QUEUE: waited_ms})
    one = gangs[0] if len(gangs) == 1 else None
    times = spent if one is None else one.ms
    return GoodputView(
        ratio_ppm=ratio_ppm(times),
        ms=times,
        is_gpu_time=one is None,
        attempts=sum(gang.attempts for gang in gangs),
        failures=sum(gang.failures for gang in gangs),
        saves=sum(gang.saves for gang in gangs),
        advice=None if one is None or not one.saves else advice_for(one),
    )


async def cluster_goodput(request: ApiRequest) -> Reply:
    check_sees_nodes(request)
    spent = request.shared.metrics.goodput.gpu_ms(request.service.now_ms())
    return GoodputView(ratio_ppm=ratio_ppm(spent), ms=spent, is_gpu_time=True)


def advice_for(gang: GangGoodput) -> IntervalView:
    """The failures of the gang itself, beside the published rate, are the rate of its nodes."""
    ran_ms = sum(gang.ms.values())
    mtbf_s = mtbf_of_nodes_s(gang.nodes, gang.failures, gang.nodes * ran_ms / 1000)
    starting_ms = gang.ms.get(START, 0) + gang.ms.get(REPAIR, 0)
    restart_s = starting_ms / gang.attempts / 1000 if gang.attempts > 1 else _RESTART_S
    save_ms = max(gang.save_ms, gang.stall_ms)
    stall_ms = gang.stall_ms or save_ms  # a program that does not say so waits for the save
    found = advise(stall_ms / 1000, (save_ms - stall_ms) / 1000, mtbf_s, restart_s)
    return IntervalView(
        interval_ms=round(found.interval_s * 1000),
        saving_ppm=round(found.saving * 1_000_000),
        repeated_ppm=round(found.repeated * 1_000_000),
        restarting_ppm=round(found.restarting * 1_000_000),
        stall_ms=stall_ms,
        save_ms=save_ms,
        mtbf_ms=round(mtbf_s * 1000),
        restart_ms=round(restart_s * 1000),
    )
