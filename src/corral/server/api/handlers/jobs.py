"""Jobs: listed, shown, explained, and changed by those who may.

What is shown of a job comes from what is durable; only its gangs are shown as they are at this moment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from corral.core.events import Event
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import GangState
from corral.core.people import identity
from corral.core.state import State
from corral.server.api.entry.asking import Ask, Content, Reply, Shared, accepted
from corral.server.api.entry.problems import Unable, not_found, refused
from corral.server.api.entry.seam import Why
from corral.server.api.entry.shared_views import JSON, encode_json, in_steps
from corral.server.api.handlers.views import (
    attempt_view,
    change_views,
    gang_view,
    in_the_way_views,
    job_view,
    reason_views,
    summary,
)
from corral.server.auth import Verb, seen_queues
from corral.server.totals import job_of
from corral.store.lookup import BadCursor, JobQuery, JobRow, Lookup
from corral.wire.api import ChangeAnswer, GangWhy, JobList, JobState, WhyView

EXPLAINED_MAX = 5
_PLACES_KEPT = 100_000


async def list_jobs(ask: Ask) -> Reply:
    wanted = ask.query
    labels = []
    for pair in wanted.labels:
        key, equals, value = pair.partition("=")
        if not equals:
            raise Unable(400, "bad_parameter", f"{pair[:40]!r} is not key=value", field="labels")
        labels.append((key, value))
    query = JobQuery(
        queues=seen_queues(ask.service.accounts, ask.principal, Verb.JOBS_READ),
        users_own=ask.user, queue=wanted.queue, user=wanted.user, states=tuple(map(str, wanted.states)),
        name=wanted.name, labels=tuple(labels), since_ms=wanted.since_ms, until_ms=wanted.until_ms,
        limit=wanted.limit, cursor=wanted.cursor,
    )  # fmt: skip
    try:
        page, shows_others = await ask.shared.look(_page, ask.service.lookup, query, ask.user)
    except BadCursor as error:
        raise Unable(400, "bad_cursor", str(error)[:200], field="cursor") from None
    if shows_others:
        await ask.has_read("a list of others' jobs")
    return Content(page, JSON)


def _page(lookup: Lookup, query: JobQuery, user: str) -> tuple[bytes, bool]:
    """A page as it is sent, and whether it shows jobs of others. In a reader thread: there may be hundreds."""
    page = lookup.jobs(query)
    body = encode_json(JobList(jobs=tuple(map(summary, page.jobs)), cursor=page.cursor))
    return body, any(row.user != user for row in page.jobs)


async def show_job(ask: Ask) -> Reply:
    row = await seen_job(ask, Verb.JOBS_READ)
    attempts = await ask.shared.look(ask.service.lookup.attempts, row.id)
    shows_env = ask.may(Verb.JOBS_CHANGE, row.queue, row.user)
    await know_places(ask.shared, {job_of(each.beneficiary) for each in attempts if each.beneficiary})
    state, live = ask.service.state, ask.service.state.jobs.get(row.id)
    names = [] if live is None else list(live.gangs)
    gangs = [gang_view(state.gangs[name], live) async for name in in_steps(names) if live and name in state.gangs]
    history = [attempt_view(each, partial(sees_gang, ask)) async for each in in_steps(attempts)]
    return job_view(row, gangs, history, shows_env)


async def seen_job(ask: Ask, verb: Verb) -> JobRow:
    """The job of the path, if it may be seen and this may be done to it."""
    name = ask.path["job"]
    row = await ask.shared.look(ask.service.lookup.job, name) if is_number(name) else None
    if row is None:
        raise not_found("job", name)
    ask.insist(verb, "job", name, row.queue, row.user)
    if verb is Verb.LOGS_READ:
        await ask.has_read(f"the log of job {row.id} of {row.user}")
    elif verb is Verb.JOBS_READ and row.user != ask.user:
        await ask.has_read(f"job {row.id} of {row.user}")
    return row


def is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 19


# ---- whose a job is --------------------------------------------------------------------------------------


async def place_of(shared: Shared, job: str) -> tuple[str, str] | None:
    """Queue and user of a job, wherever it is remembered; neither ever changes."""
    await know_places(shared, {job})
    return known_place(shared, job)


async def know_places(shared: Shared, jobs: set[str]) -> None:
    """Look up those that the state has let go."""
    for job in jobs:
        if known_place(shared, job) is None and is_number(job):
            row = await shared.look_first(shared.service.lookup.job, job)
            if row is not None:
                if len(shared.places) >= _PLACES_KEPT:
                    shared.places.clear()
                shared.places[job] = (row.queue, row.user)


def known_place(shared: Shared, job: str) -> tuple[str, str] | None:
    live = shared.service.state.jobs.get(job)
    return shared.places.get(job) if live is None else (live.spec.queue, live.user)


def sees_gang(ask: Ask, gang: str) -> bool:
    place = known_place(ask.shared, job_of(gang))
    return place is not None and ask.may(Verb.JOBS_READ, *place)


# ---- why -------------------------------------------------------------------------------------------------


async def explain(ask: Ask) -> Reply:
    row = await seen_job(ask, Verb.JOBS_READ)
    state, now_ms = ask.service.state, ask.service.now_ms()
    job = state.jobs.get(row.id)
    waiting = [] if job is None else [g for g in job.gangs if state.gangs[g].state is GangState.WAITING]
    gangs = [_why(ask, name, await ask.service.explain(name), now_ms) for name in waiting[:EXPLAINED_MAX]]
    return WhyView(
        job=row.id, state=JobState(row.state), at_ms=now_ms, gangs_waiting=len(waiting),
        gangs=tuple(each for each in gangs if each is not None),
    )  # fmt: skip


def _why(ask: Ask, name: str, why: Why | Refusal, now_ms: int) -> GangWhy | None:
    """None: it has ended and been forgotten while this was thought about."""
    gang = ask.service.state.gangs.get(name)
    if gang is None or isinstance(why, Refusal):
        return None

    def sees(other: str) -> bool:
        return sees_gang(ask, other)

    return GangWhy(
        gang=name,
        state=gang.state,
        reasons=tuple(reason_views(why.hold, now_ms, sees)),
        in_the_way=tuple(in_the_way_views(why.hold, now_ms, sees)),
        changes=tuple(change_views(why.changes)),
        starts_ms=ask.service.promised_ms(name),
    )


# ---- changes ---------------------------------------------------------------------------------------------

Changing = Callable[[State, str, int], list[Event] | Refusal]


async def _change(ask: Ask, changing: Changing) -> Reply:
    name = ask.path["job"]
    place = await place_of(ask.shared, name)
    if place is None:
        raise not_found("job", name)
    ask.insist(Verb.JOBS_CHANGE, "job", name, *place)

    def command(state: State, now_ms: int) -> list[Event] | Refusal:
        if name not in state.jobs:
            return Refusal("job_over", f"job {name} is over")
        return changing(state, name, now_ms)

    done = accepted(await ask.service.change(ask.user, command))
    return ChangeAnswer(seq=done.seq)


async def cancel(ask: Ask) -> Reply:
    return await _change(ask, lambda state, job, now_ms: commands.cancel(state, job, now_ms, at_once=ask.query.now))


async def hold(ask: Ask) -> Reply:
    return await _change(ask, commands.hold)


async def release(ask: Ask) -> Reply:
    """A job that the server itself holds is an operator's to release: with it nobody's jobs were placed."""
    is_administrator = ask.may(Verb.USERS_CHANGE)

    def released(state: State, job: str, now_ms: int) -> list[Event] | Refusal:
        if state.jobs[job].held_why and not ask.may(Verb.NODES_CHANGE, ""):
            why = f"job {job} is quarantined: planning failed because of it"
            return Refusal("quarantined", why, "ask an operator to release it, or cancel it and submit it changed")
        return identity.release(state, ask.service.accounts, job, ask.service.account_rules, is_administrator, now_ms)

    return await _change(ask, released)


async def requeue(ask: Ask) -> Reply:
    return await _change(ask, commands.requeue)


async def change_priority(ask: Ask) -> Reply:
    priority = ask.body.priority
    if not -1_000_000 <= priority <= 1_000_000:
        raise refused(Refusal("bad_priority", f"priority {priority} is out of range", "-1000000..1000000", "priority"))
    rules = binding_rules(ask)
    return await _change(ask, lambda state, job, now_ms: commands.change_priority(state, job, priority, now_ms, rules))


def binding_rules(ask: Ask) -> SiteRules | None:
    """Of the site, unless whoever asks may go beyond them."""
    return None if ask.may(Verb.JOBS_UNBOUNDED) else ask.service.rules
