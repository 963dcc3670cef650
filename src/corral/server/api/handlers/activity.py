"""What a job and the cluster do now: what nodes have last reported, matched with the gangs on them.

A user sees the activity of the jobs that they may see, and that of all nodes, as in other lists.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, amount_of
from corral.core.model import Gang, Job
from corral.server.activity.gangs import gpu_totals, gpu_view, task_views, totals
from corral.server.activity.notes import notes
from corral.server.api.handlers.cluster import check_sees_nodes
from corral.server.api.handlers.jobs import seen_job, sees_gang
from corral.server.api.handlers.selection import selector_of
from corral.server.api.http.request import ApiRequest, Content, Reply
from corral.server.api.http.shared_views import JSON, encode_json, in_steps
from corral.server.auth import Verb, seen_queues
from corral.wire.api import (
    ActivityTotals,
    ClusterActivity,
    JobActivity,
    JobActivityLine,
    JobState,
    NodeActivityLine,
    TaskActivityView,
)
from corral.wire.details import GpuActivity

_TASKS_MAX = 1_000  # in one answer
LOSS = "loss"


async def job_activity(request: ApiRequest) -> Reply:
    row = await seen_job(request, Verb.JOBS_READ)
    live = request.service.state.jobs.get(row.id)
    tasks = [] if live is None else await _tasks(request, live)
    return JobActivity(
        job=row.id,
        name=row.name,
        state=JobState(row.state),
        user=row.user,
        queue=row.queue,
        at_ms=request.service.now_ms(),
        started_ms=row.started_ms,
        total=totals(tasks),
        tasks=tuple(tasks[:_TASKS_MAX]),
        tasks_total=len(tasks),
        notes=notes(tasks),
    )


async def _tasks(request: ApiRequest, job: Job) -> list[TaskActivityView]:
    state, selector = request.service.state, selector_of(request)
    now_ms = request.service.now_ms()
    found: list[TaskActivityView] = []
    async for name in in_steps(list(job.gangs)):
        gang = state.holders.get(name)
        if gang is not None and selector.takes(gang.index, gang.role):
            found += task_views(gang, request.service.activities, now_ms)
    return found


# ---- the cluster -----------------------------------------------------------------------------------------


async def cluster_activity(request: ApiRequest) -> Reply:
    check_sees_nodes(request)
    own = "" if seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ) is None else request.user
    key = ("activity", own, request.rights, request.query.limit)
    return Content(await request.shared.views.of(key, partial(_cluster, request)), JSON)


async def _cluster(request: ApiRequest) -> bytes:
    limit = request.query.limit
    nodes, jobs = await _node_lines(request), await _job_lines(request)
    nodes.sort(key=lambda line: (-line.gpus_used, -(line.total.cpu_milli or 0), line.node))
    jobs.sort(key=lambda line: (-line.total.gpus, -(line.total.cpu_milli or 0), int(line.job)))
    return encode_json(
        ClusterActivity(
            at_ms=request.service.now_ms(),
            total=_sum([line.total for line in nodes]),
            gpus_used=sum(line.gpus_used for line in nodes),
            nodes=tuple(nodes[:limit]),
            nodes_total=len(nodes),
            jobs=tuple(jobs[:limit]),
            jobs_total=len(jobs),
        )
    )


async def _node_lines(request: ApiRequest) -> list[NodeActivityLine]:
    state = request.service.state
    state.refresh()
    names = [spec.name for spec in state.topology.nodes]
    return [_node_line(request, name) async for name in in_steps(names) if name in state.nodes]


def _node_line(request: ApiRequest, name: str) -> NodeActivityLine:
    state, now_ms = request.service.state, request.service.now_ms()
    spec, reading = state.nodes[name].spec, request.service.activities.of(name, now_ms)
    number = state.topology.number.get(name)
    used = 0 if number is None else state.capacity.used[number].bit_count()
    known = {} if reading is None else reading.gpus
    total = replace(
        gpu_totals(gpu_view(known.get(slot, GpuActivity(slot=slot))) for slot in range(len(spec.gpus))),
        cpu_milli=None if reading is None else reading.cpu_milli,
        cpu_given_milli=amount_of(spec.amounts, CPU_MILLI),
        memory_mib=None if reading is None else reading.memory_mib,
        memory_given_mib=amount_of(spec.amounts, MEMORY_MIB),
    )
    age_ms = None if reading is None else now_ms - reading.at_ms
    return NodeActivityLine(node=name, age_ms=age_ms, gpus_used=used, total=total)


async def _job_lines(request: ApiRequest) -> list[JobActivityLine]:
    state = request.service.state
    by_job: dict[str, list[Gang]] = {}
    async for gang in in_steps(list(state.holders.values())):
        if sees_gang(request, gang.id):
            by_job.setdefault(gang.job, []).append(gang)
    return [
        _job_line(request, state.jobs[job], gangs) async for job, gangs in in_steps(by_job.items()) if job in state.jobs
    ]


def _job_line(request: ApiRequest, job: Job, gangs: list[Gang]) -> JobActivityLine:
    now_ms, activities = request.service.now_ms(), request.service.activities
    tasks = [view for gang in gangs if gang.holds_seats for view in task_views(gang, activities, now_ms)]
    ranks = [rank for task in tasks for rank in task.ranks if rank.step is not None]
    first = min(ranks, key=lambda rank: rank.rank, default=None)
    started = [gang.started_ms for gang in gangs if gang.started_ms]
    return JobActivityLine(
        job=job.id,
        name=job.spec.name,
        user=job.user,
        queue=job.spec.queue,
        started_ms=min(started, default=None),
        total=totals(tasks),
        step=None if first is None else first.step,
        step_ms=None if first is None else first.step_ms,
        loss=None if first is None else first.metrics.get(LOSS),
        notes=notes(tasks),
    )


def _sum(lines: list[ActivityTotals]) -> ActivityTotals:
    """All nodes together; the mean utilisation counts each GPU once."""
    found: dict[str, int] = {}
    for name in ActivityTotals.__struct_fields__:
        values = [value for line in lines if (value := getattr(line, name)) is not None]
        if values:
            found[name] = sum(values)
    measured = sum(line.gpus_measured for line in lines)
    busy = sum(line.gpus_measured * (line.utilisation_percent or 0) for line in lines)
    found.pop("utilisation_percent", None)
    return ActivityTotals(**found, utilisation_percent=round(busy / measured) if measured else None)
