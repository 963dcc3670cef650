"""Jobs: list, show, explain and change them.

What is shown of a job comes from durable records; only its gangs are shown from the current state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from corral.core.accounts import identity
from corral.core.events import Event
from corral.core.gang_id import job_of
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import GangState
from corral.core.state import State
from corral.server.api.handlers.views import (
    attempt_view,
    change_views,
    gang_view,
    in_the_way_views,
    job_view,
    reason_views,
    summary,
)
from corral.server.api.http.problems import ApiError, not_found, refused
from corral.server.api.http.request import ApiRequest, Content, Reply, Shared, accepted
from corral.server.api.http.shared_views import JSON, encode_json, in_steps
from corral.server.auth import Verb, seen_queues
from corral.server.planner.questions import WhyAnswer
from corral.store.lookup import BadCursor, JobQuery, JobRow, Lookup
from corral.wire.api import ChangeAnswer, GangWhy, JobList, JobState, WhyView

EXPLAINED_MAX = 5
_PLACES_KEPT = 100_000


async def list_jobs(request: ApiRequest) -> Reply:
    wanted = request.query
    labels = []
    for pair in wanted.labels:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ApiError(400, "bad_parameter", f"{pair[:40]!r} is not key=value", field="labels")
        labels.append((key, value))
    query = JobQuery(
        queues=seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ),
        users_own=request.user,
        queue=wanted.queue,
        user=wanted.user,
        states=tuple(map(str, wanted.states)),
        name=wanted.name,
        labels=tuple(labels),
        since_ms=wanted.since_ms,
        until_ms=wanted.until_ms,
        limit=wanted.limit,
        cursor=wanted.cursor,
    )
    try:
        page, shows_others = await request.shared.look(_page, request.service.lookup, query, request.user)
    except BadCursor as error:
        raise ApiError(400, "bad_cursor", str(error)[:200], field="cursor") from None
    if shows_others:
        await request.audit_read("a list of others' jobs")
    return Content(page, JSON)


def _page(lookup: Lookup, query: JobQuery, user: str) -> tuple[bytes, bool]:
    """An encoded page, and whether it shows jobs of other users. Runs in a reader thread: a page may be long."""
    page = lookup.jobs(query)
    body = encode_json(JobList(jobs=tuple(map(summary, page.jobs)), cursor=page.cursor))
    return body, any(row.user != user for row in page.jobs)


async def show_job(request: ApiRequest) -> Reply:
    row = await seen_job(request, Verb.JOBS_READ)
    attempts = await request.shared.look(request.service.lookup.attempts, row.id)
    shows_env = request.may(Verb.JOBS_CHANGE, row.queue, row.user)
    await load_owners(request.shared, {job_of(each.beneficiary) for each in attempts if each.beneficiary})
    state, live = request.service.state, request.service.state.jobs.get(row.id)
    names = [] if live is None else list(live.gangs)
    gangs = [gang_view(state.gangs[name], live) async for name in in_steps(names) if live and name in state.gangs]
    history = [attempt_view(each, partial(sees_gang, request)) async for each in in_steps(attempts)]
    return job_view(row, gangs, history, shows_env)


async def seen_job(request: ApiRequest, verb: Verb) -> JobRow:
    """The job of the path, if the user may see it and may do this with it."""
    name = request.path["job"]
    row = await request.shared.look(request.service.lookup.job, name) if is_number(name) else None
    if row is None:
        raise not_found("job", name)
    request.require(verb, "job", name, row.queue, row.user)
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
    waiting = [] if job is None else [g for g in job.gangs if state.gangs[g].state is GangState.WAITING]
    gangs = [_why(request, name, await request.service.explain(name), now_ms) for name in waiting[:EXPLAINED_MAX]]
    return WhyView(
        job=row.id,
        state=JobState(row.state),
        at_ms=now_ms,
        gangs_waiting=len(waiting),
        gangs=tuple(each for each in gangs if each is not None),
    )


def _why(request: ApiRequest, name: str, why: WhyAnswer | Refusal, now_ms: int) -> GangWhy | None:
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
        starts_ms=request.service.reserved_start_ms(name),
    )


# ---- changes ---------------------------------------------------------------------------------------------

Changing = Callable[[State, str, int], list[Event] | Refusal]


async def _change(request: ApiRequest, changing: Changing) -> Reply:
    name = request.path["job"]
    owner = await owner_of(request.shared, name)
    if owner is None:
        raise not_found("job", name)
    request.require(Verb.JOBS_CHANGE, "job", name, *owner)

    def command(state: State, now_ms: int) -> list[Event] | Refusal:
        if name not in state.jobs:
            return Refusal("job_over", f"job {name} has ended")
        return changing(state, name, now_ms)

    done = accepted(await request.service.change(request.user, command))
    return ChangeAnswer(seq=done.seq)


async def cancel(request: ApiRequest) -> Reply:
    return await _change(
        request, lambda state, job, now_ms: commands.cancel(state, job, now_ms, at_once=request.query.now)
    )


async def hold(request: ApiRequest) -> Reply:
    return await _change(request, commands.hold)


async def release(request: ApiRequest) -> Reply:
    """Release a held job. Only an operator may release a quarantined job: with it in the queue all planning failed."""
    is_administrator = request.may(Verb.USERS_CHANGE)

    def released(state: State, job: str, now_ms: int) -> list[Event] | Refusal:
        if state.jobs[job].held_why and not request.may(Verb.NODES_CHANGE, ""):
            why = f"job {job} is quarantined: planning failed because of it"
            return Refusal("quarantined", why, "ask an operator to release it, or cancel it and submit a changed job")
        account = request.service.account_for(state.jobs[job].user)
        return identity.release(state, request.service.accounts, job, account, is_administrator, now_ms)

    return await _change(request, released)


async def requeue(request: ApiRequest) -> Reply:
    return await _change(request, commands.requeue)


async def change_priority(request: ApiRequest) -> Reply:
    priority = request.body.priority
    if not -1_000_000 <= priority <= 1_000_000:
        raise refused(Refusal("bad_priority", f"priority {priority} is out of range", "-1000000..1000000", "priority"))
    rules = binding_rules(request)
    return await _change(
        request, lambda state, job, now_ms: commands.change_priority(state, job, priority, now_ms, rules)
    )


def binding_rules(request: ApiRequest) -> SiteRules | None:
    """The limits of the site; None for users who may exceed them."""
    return None if request.may(Verb.JOBS_UNBOUNDED) else request.service.rules
