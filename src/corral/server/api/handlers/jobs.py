"""Jobs: list, show and explain them. Changes are in ``job_changes``.

What is shown of a job comes from durable records; only its gangs are shown from the current state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from corral.core.gang_id import index_of, job_of, role_of
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState
from corral.core.state import State
from corral.server.api.handlers.selection import check_selector, selector_of
from corral.server.api.handlers.views import (
    Present,
    attempt_view,
    change_views,
    gang_view,
    in_the_way_views,
    job_view,
    narrowed,
    reason_views,
    start_note,
    summary,
)
from corral.server.api.http.problems import ApiError, not_found
from corral.server.api.http.request import ApiRequest, Content, Reply, Shared
from corral.server.api.http.shared_views import JSON, encode_json, in_steps
from corral.server.auth import Verb, seen_queues
from corral.server.planner.questions import WhyAnswer
from corral.store.lookup import BadCursor, JobPage, JobQuery, JobRow, JobTable
from corral.wire.api import GangWhy, JobList, JobState, WhyView
from corral.wire.api.selector import Selector

EXPLAINED_MAX = 5
OUTLOOKS_MAX = 200  # jobs of a page for which the planner is asked
NODES_SHOWN = 8
_PLACES_KEPT = 100_000
_JOBS_ON_NODES_MAX = 10_000


async def list_jobs(request: ApiRequest) -> Reply:
    page = await _page(request)
    if any(row.user != request.user for row in page.jobs):
        await request.audit_read("a list of others' jobs")
    present = await presents(request, page.jobs)
    return Content(await request.shared.look(_encoded, page, present), JSON)


async def _page(request: ApiRequest) -> JobPage | JobTable:
    wanted = request.query
    query = replace(
        job_query(request, wanted, wanted.until_ms),
        limit=wanted.limit,
        cursor=wanted.cursor,
        search=wanted.search,
        ids=jobs_at(request, wanted),
    )
    lookup = request.service.lookup
    if wanted.sort is not None:
        if wanted.cursor is not None:
            raise ApiError(400, "bad_parameter", "a sorted list has no cursor", "use offset", "cursor")
        return await request.shared.look(lookup.job_table, query, wanted.sort, wanted.descending, wanted.offset)
    if wanted.offset:
        raise ApiError(400, "bad_parameter", "offset is for a sorted list", "add sort=submitted", "offset")
    try:
        return await request.shared.look(lookup.jobs, query)
    except BadCursor as error:
        raise ApiError(400, "bad_cursor", str(error)[:200], field="cursor") from None


def jobs_at(request: ApiRequest, wanted: Any) -> tuple[str, ...] | None:
    """The jobs that hold seats on a node, or on nodes with GPUs of a model. Their rights are checked with the rest.
    None: neither is asked for."""
    state = request.service.state
    if wanted.node is None and wanted.gpu_model is None:
        return None
    found: dict[str, None] = {}
    for name, tenants in state.tenants.items():
        gpus = state.nodes[name].spec.gpus if name in state.nodes else ()
        if wanted.node in (None, name) and (wanted.gpu_model is None or any(g.model == wanted.gpu_model for g in gpus)):
            found.update(dict.fromkeys(state.gangs[gang].job for gang in tenants))
    return tuple(islice(found, _JOBS_ON_NODES_MAX))


def job_query(request: ApiRequest, wanted: Any, until_ms: int | None) -> JobQuery:
    """The query for the jobs that a list or a filter names, among those that the user may see."""
    labels = []
    for pair in wanted.labels:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ApiError(400, "bad_parameter", f"{pair[:40]!r} is not key=value", field="labels")
        labels.append((key, value))
    return JobQuery(
        queues=seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ),
        users_own=request.user,
        queue=wanted.queue,
        user=wanted.user,
        states=tuple(map(str, wanted.states)),
        name=wanted.name,
        labels=tuple(labels),
        since_ms=wanted.since_ms,
        until_ms=until_ms,
    )


def _encoded(page: JobPage | JobTable, present: Mapping[str, Present]) -> bytes:
    """Runs in a reader thread: a page may be long."""
    jobs = tuple(summary(row, present.get(row.id)) for row in page.jobs)
    if isinstance(page, JobTable):
        return encode_json(JobList(jobs=jobs, total=page.total))
    return encode_json(JobList(jobs=jobs, cursor=page.cursor))


# ---- the present -----------------------------------------------------------------------------------------


async def holdings(request: ApiRequest, rows: Sequence[JobRow]) -> dict[str, Present]:
    """What the unfinished of these jobs hold now."""
    return await _holdings(request.service.state, {row.id: row.id for row in rows if not row.is_over}, None)


async def presents(request: ApiRequest, rows: Sequence[JobRow], selector: Selector | None = None) -> dict[str, Present]:
    """What the unfinished of these jobs hold now, why they wait, and when they should start. ``selector``: for some
    gangs of the only job."""
    state, now_ms = request.service.state, request.service.now_ms()
    live = {row.id if selector is None else selector.job: row.id for row in rows if not row.is_over}
    held = await _holdings(state, live, selector)
    waiting: dict[str, str] = {}
    for job, key in live.items():
        if job in state.jobs and key not in held and len(waiting) < OUTLOOKS_MAX:
            first = await _first_waiting(state, job, selector)
            if first:
                waiting[key] = first
    outlooks = await request.service.outlooks(tuple(waiting.values())) if waiting else {}

    def sees(other: str) -> bool:
        return sees_gang(request, other)

    for key, gang in waiting.items():
        outlook = outlooks.get(gang)
        if outlook is not None:
            reason = next((each.text for each in reason_views(outlook.hold, now_ms, sees)), "")
            note = start_note(outlook.assumed_ms)
            held[key] = Present(reason=reason, starts_ms=outlook.starts_ms, starts_note=note)
    return held


async def _first_waiting(state: State, job: str, selector: Selector | None) -> str:
    """The first gang that waits, of those that nothing but the cluster keeps from starting if there are some."""
    first = ""
    async for name in in_steps(list(state.jobs[job].gangs)):
        gang = state.gangs.get(name)
        if gang is None or gang.state is not GangState.WAITING:
            continue
        if selector is None or selector.takes(gang.index, gang.role):
            if not gang.blockers:
                return name
            first = first or name
    return first


async def _holdings(state: State, live: Mapping[str, str], selector: Selector | None) -> dict[str, Present]:
    gpus: dict[str, int] = {}
    nodes: dict[str, dict[str, None]] = {}
    async for gang in in_steps(list(state.holders.values())):
        if gang.job in live and (selector is None or selector.takes(gang.index, gang.role)):
            key = live[gang.job]
            gpus[key] = gpus.get(key, 0) + gang.gpu_milli
            nodes.setdefault(key, {}).update(dict.fromkeys(seat.node for seat in gang.all_seats))
    return {
        key: Present(gpus_held=-(-gpus[key] // 1000), nodes=tuple(islice(on, NODES_SHOWN)), nodes_held=len(on))
        for key, on in nodes.items()
    }


async def show_job(request: ApiRequest) -> Reply:
    row = await seen_job(request, Verb.JOBS_READ)
    attempts = await request.shared.look(request.service.lookup.attempts, row.id)
    shows_env = request.may(Verb.JOBS_CHANGE, row.queue, row.user)
    await load_owners(request.shared, {job_of(each.beneficiary) for each in attempts if each.beneficiary})
    state, live = request.service.state, request.service.state.jobs.get(row.id)
    selector = selector_of(request)
    names = [] if live is None else [name for name in live.gangs if selector.takes(index_of(name), role_of(name))]
    attempts = [each for each in attempts if selector.takes(each.index, each.role)]
    slow = request.service.slow_ranks
    gangs = [
        gang_view(state.gangs[name], live, slow(name)) async for name in in_steps(names) if live and name in state.gangs
    ]
    now_ms, sees = request.service.now_ms(), partial(sees_gang, request)
    history = [attempt_view(each, sees, now_ms) async for each in in_steps(attempts)]
    if not selector.is_whole:
        row = narrowed(row, selector, gangs, history)
    present = await presents(request, (row,), None if selector.is_whole else selector)
    return job_view(row, gangs, history, shows_env, present.get(row.id, Present()))


async def seen_job(request: ApiRequest, verb: Verb) -> JobRow:
    """The job of the path, if the user may see it and may do this with it, and it has what the path names."""
    selector = selector_of(request)
    row = await request.shared.look(request.service.lookup.job, selector.job)
    if row is None:
        raise not_found("job", selector.job)
    request.require(verb, "job", selector.job, row.queue, row.user)
    check_selector(row.spec, selector)
    if verb is Verb.LOGS_READ:
        await request.audit_read(f"the log of job {row.id} of {row.user}")
    elif verb is Verb.JOBS_READ and row.user != request.user:
        await request.audit_read(f"job {row.id} of {row.user}")
    return row


def is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 19


# ---- queue and user of a job -----------------------------------------------------------------------------


async def owner_of(shared: Shared, job: str) -> tuple[str, str] | None:
    """Queue and user of a job, from the state or the journal; neither ever changes."""
    await load_owners(shared, {job})
    return known_owner(shared, job)


async def load_owners(shared: Shared, jobs: set[str]) -> None:
    """Look up the jobs that are no longer in the state."""
    for job in jobs:
        if known_owner(shared, job) is None and is_number(job):
            row = await shared.look_first(shared.service.lookup.job, job)
            if row is not None:
                if len(shared.owners) >= _PLACES_KEPT:
                    shared.owners.clear()
                shared.owners[job] = (row.queue, row.user)


def known_owner(shared: Shared, job: str) -> tuple[str, str] | None:
    live = shared.service.state.jobs.get(job)
    return shared.owners.get(job) if live is None else (live.spec.queue, live.user)


def sees_gang(request: ApiRequest, gang: str) -> bool:
    owner = known_owner(request.shared, job_of(gang))
    return owner is not None and request.may(Verb.JOBS_READ, *owner)


# ---- why -------------------------------------------------------------------------------------------------


async def explain(request: ApiRequest) -> Reply:
    row = await seen_job(request, Verb.JOBS_READ)
    state, now_ms = request.service.state, request.service.now_ms()
    job = state.jobs.get(row.id)
    selector = selector_of(request)
    chosen = [] if job is None else [g for g in job.gangs if selector.takes(index_of(g), role_of(g))]
    waiting = [name for name in chosen if state.gangs[name].state is GangState.WAITING]
    shown = waiting[:EXPLAINED_MAX]
    outlooks = await request.service.outlooks(tuple(shown)) if shown else {}
    gangs = []
    for name in shown:
        outlook = outlooks.get(name)
        starts_ms = request.service.reserved_start_ms(name) if outlook is None else outlook.starts_ms
        gangs.append(_why(request, name, await request.service.explain(name), now_ms, starts_ms))
    return WhyView(
        job=row.id,
        state=JobState(row.state),
        at_ms=now_ms,
        gangs_waiting=len(waiting),
        gangs=tuple(each for each in gangs if each is not None),
    )


def _why(
    request: ApiRequest, name: str, why: WhyAnswer | Refusal, now_ms: int, starts_ms: int | None
) -> GangWhy | None:
    """None if the gang has ended and was dropped from memory while the planner worked on this."""
    gang = request.service.state.gangs.get(name)
    if gang is None or isinstance(why, Refusal):
        return None

    def sees(other: str) -> bool:
        return sees_gang(request, other)

    return GangWhy(
        gang=name,
        state=gang.state,
        reasons=tuple(reason_views(why.hold, now_ms, sees)),
        in_the_way=tuple(in_the_way_views(why.hold, now_ms, sees)),
        changes=tuple(change_views(why.changes)),
        starts_ms=starts_ms,
    )
