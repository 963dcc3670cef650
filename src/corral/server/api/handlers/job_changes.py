"""Changes of jobs: cancel, hold, release, requeue, priority; of one job, of some of its gangs, or of many jobs at once.

Many jobs are changed in slices, each a change of its own that is durable before the next one begins, so that the loop
is never blocked for long. Rights are checked for each job. A job that cannot be changed does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from corral.core.accounts import identity
from corral.core.events import Event
from corral.core.intake import commands, gang_changes
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import Blocker, Job
from corral.core.state import State
from corral.server.api.handlers.jobs import job_query, jobs_at, known_owner, owner_of
from corral.server.api.handlers.selection import gangs_of, selector_of
from corral.server.api.http.problems import ApiError, refused
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.api.http.shared_views import in_steps
from corral.server.auth import Access, Verb, authorize
from corral.store.lookup import LIVE, PAGE_MAX, JobQuery
from corral.wire.api import ChangeJobsAnswer, JobFilter, RefusedJob
from corral.wire.api.selector import BadSelector, Selector, parse

NAMES_MAX = 10_000  # jobs that one request may name
JOBS_MAX = 200_000  # jobs that one request may change
REFUSED_SHOWN = 1_000
_GANGS_AT_ONCE = 200  # of a slice; a job is never divided
_PRIORITY_MAX = 1_000_000

#: From a job, and those of its gangs that are meant (None: the whole job), to events or a refusal.
Changing = Callable[[State, Job, "list[str] | None", int], "list[Event] | Refusal"]


# ---- one job ---------------------------------------------------------------------------------------------


async def _change(request: ApiRequest, changing: Changing) -> Reply:
    selector = selector_of(request)
    owner = await owner_of(request.shared, selector.job)
    if owner is None:
        raise ApiError(404, "no_such_job", f"there is no job {selector.job!r}")
    request.require(Verb.JOBS_CHANGE, "job", selector.job, *owner)
    return await request.change(lambda state, now_ms: _events(state, selector, changing, now_ms))


def _events(state: State, selector: Selector, changing: Changing, now_ms: int) -> list[Event] | Refusal:
    job = state.jobs.get(selector.job)
    if job is None:
        return Refusal("job_over", f"job {selector.job} has ended")
    gangs = None if selector.is_whole else gangs_of(job.spec, selector)
    return gangs if isinstance(gangs, Refusal) else changing(state, job, gangs, now_ms)


async def cancel(request: ApiRequest) -> Reply:
    return await _change(request, _cancelling(request.query.now))


async def hold(request: ApiRequest) -> Reply:
    return await _change(request, _holding)


async def release(request: ApiRequest) -> Reply:
    return await _change(request, _releasing(request))


async def requeue(request: ApiRequest) -> Reply:
    return await _change(request, _requeueing)


async def change_priority(request: ApiRequest) -> Reply:
    return await _change(request, _prioritising(request, request.body.priority))


def _cancelling(now: bool) -> Changing:
    def cancelled(state: State, job: Job, gangs: list[str] | None, now_ms: int) -> list[Event] | Refusal:
        if gangs is None:
            return commands.cancel(state, job.id, now_ms, at_once=now)
        return gang_changes.cancel(state, gangs, now_ms, at_once=now)

    return cancelled


def _holding(state: State, job: Job, gangs: list[str] | None, now_ms: int) -> list[Event] | Refusal:
    return commands.hold(state, job.id, now_ms) if gangs is None else gang_changes.hold(state, gangs, now_ms)


def _requeueing(state: State, job: Job, gangs: list[str] | None, now_ms: int) -> list[Event] | Refusal:
    return commands.requeue(state, job.id, now_ms) if gangs is None else gang_changes.requeue(state, gangs, now_ms)


def _releasing(request: ApiRequest) -> Changing:
    """Only an operator may release a quarantined job: with it in the queue all planning failed."""
    is_administrator = request.may(Verb.USERS_CHANGE)

    def released(state: State, job: Job, gangs: list[str] | None, now_ms: int) -> list[Event] | Refusal:
        if job.held_why and not request.may(Verb.NODES_CHANGE, ""):
            why = f"job {job.id} is quarantined: planning failed because of it"
            return Refusal("quarantined", why, "ask an operator to release it, or cancel it and submit a changed job")
        if gangs is not None and job.suspended is None:
            return gang_changes.release(state, gangs, now_ms)
        account = request.service.account_for(job.user)
        return identity.release(state, request.service.accounts, job.id, account, is_administrator, now_ms)

    return released


def _prioritising(request: ApiRequest, priority: int) -> Changing:
    if not -_PRIORITY_MAX <= priority <= _PRIORITY_MAX:
        raise refused(
            Refusal(
                "bad_priority",
                f"priority {priority} is out of range",
                "use a number from -1000000 to 1000000",
                "priority",
            )
        )
    rules = binding_rules(request)

    def prioritised(state: State, job: Job, gangs: list[str] | None, now_ms: int) -> list[Event] | Refusal:
        if gangs is None:
            return commands.change_priority(state, job.id, priority, now_ms, rules)
        return gang_changes.change_priority(state, gangs, priority, now_ms, rules)

    return prioritised


def binding_rules(request: ApiRequest) -> SiteRules | None:
    """The limits of the site; None for users who may exceed them."""
    return None if request.may(Verb.JOBS_UNBOUNDED) else request.service.rules


# ---- many jobs -------------------------------------------------------------------------------------------


async def change_jobs(request: ApiRequest) -> Reply:
    """Change the jobs that are named, or all that match a filter. ``dry_run``: only count them."""
    body, noted = request.body, _Noted()
    changing = _changing(request, body)
    if (body.filter is None) == (not body.jobs):
        raise ApiError(422, "no_jobs", "name jobs, or give a filter, and not both", "see /v1/docs", "jobs")
    named = body.filter is None
    chosen = await _named(request, body.jobs, noted) if named else await _matching(request, body, noted)
    answer = ChangeJobsAnswer(matched=len(chosen), changed=0, refused=noted.count)
    if body.expect is not None and body.expect != len(chosen):
        why = f"{len(chosen):,} jobs match, and {body.expect:,} were expected; nothing was changed"
        raise ApiError(409, "count_differs", why, "look at them again: the same request with dry_run", "expect")
    if not body.dry_run:
        for part in _slices(request.service.state, chosen):
            done = await request.service.change(request.user, _of_all(part, changing, noted))
            if not isinstance(done, Refusal):
                answer = replace(answer, seq=done.seq)
        answer = replace(answer, changed=noted.changed, refused=noted.count)
    return replace(answer, refusals=tuple(noted.refusals))


class _Noted:
    """How many jobs were changed and refused, and why, of the first ones."""

    def __init__(self) -> None:
        self.changed = self.count = 0
        self.refusals: list[RefusedJob] = []

    def refuse(self, job: str, refusal: Refusal) -> None:
        self.count += 1
        if len(self.refusals) < REFUSED_SHOWN:
            self.refusals.append(RefusedJob(job=job, code=refusal.code, why=refusal.why, hint=refusal.hint))


def _changing(request: ApiRequest, body: Any) -> Changing:
    if body.change == "priority":
        if body.priority is None:
            raise ApiError(422, "no_priority", "no priority is given", "give `priority`", "priority")
        return _prioritising(request, body.priority)
    table: dict[str, Changing] = {
        "cancel": _cancelling(body.now),
        "hold": _holding,
        "release": _releasing(request),
        "requeue": _requeueing,
    }
    return table[body.change]


async def _named(request: ApiRequest, names: Sequence[str], noted: _Noted) -> list[Selector]:
    """The jobs that are named and that the user may change; each once."""
    if len(names) > NAMES_MAX:
        why = f"{len(names):,} jobs are named; the limit is {NAMES_MAX:,}"
        raise ApiError(422, "too_many_jobs", why, "use a filter, or several requests", "jobs")
    found = []
    async for name in in_steps(dict.fromkeys(names)):
        try:
            selector = parse(name)
        except BadSelector as wrong:
            noted.refuse(name[:100], Refusal("no_such_job", str(wrong), wrong.hint))
            continue
        owner = known_owner(request.shared, selector.job) or await owner_of(request.shared, selector.job)
        refusal = _no_right(request, selector.job, owner)
        if refusal is None:
            found.append(selector)
        else:
            noted.refuse(name, refusal)
    return found


def _no_right(request: ApiRequest, job: str, owner: tuple[str, str] | None) -> Refusal | None:
    access = Access.HIDDEN
    if owner is not None:
        access = authorize(request.service.accounts, request.principal, Verb.JOBS_CHANGE, *owner)
    if access is Access.HIDDEN:
        return Refusal("no_such_job", f"there is no job {job!r}")
    if access is Access.FORBIDDEN:
        return Refusal("forbidden", f"you may not change job {job}", "ask a lead or administrator for a role")
    return None


async def _matching(request: ApiRequest, body: Any, noted: _Noted) -> list[Selector]:
    """The unfinished jobs that match a filter and that the change applies to, oldest first."""
    query = _query(request, body.filter)
    state, found = request.service.state, list[Selector]()
    while True:
        page = await request.shared.look(request.service.lookup.jobs, query)
        async for row in in_steps(page.jobs):
            job = state.jobs.get(row.id)
            if job is None or job.is_over or not _applies(state, job, body):
                continue
            refusal = _no_right(request, row.id, (row.queue, row.user))
            if refusal is None:
                found.append(Selector(row.id))
            else:
                noted.refuse(row.id, refusal)
        if page.cursor is None or len(found) >= JOBS_MAX:
            return found[::-1]
        query = replace(query, cursor=page.cursor)


def _query(request: ApiRequest, wanted: JobFilter) -> JobQuery:
    conditions = (
        wanted.name, wanted.user, wanted.queue, wanted.before_ms, wanted.since_ms, wanted.search or None, wanted.node,
        wanted.gpu_model,
    )  # fmt: skip
    if not wanted.all and not wanted.states and not wanted.labels and all(each is None for each in conditions):
        why = "the filter has no condition, and would match every job"
        raise ApiError(422, "no_condition", why, "give a condition, or `all`: true", "filter")
    over = [state for state in wanted.states if state not in LIVE]
    if over:
        why = f"jobs that are {over[0]} have ended and cannot be changed"
        raise ApiError(422, "job_over", why, f"states may be {', '.join(LIVE)}", "filter.states")
    query = job_query(request, wanted, until_ms=wanted.before_ms)
    states = tuple(map(str, wanted.states)) or LIVE
    return replace(query, states=states, search=wanted.search or None, ids=jobs_at(request, wanted), limit=PAGE_MAX)


def _applies(state: State, job: Job, body: Any) -> bool:
    """Whether the change would change anything. Jobs for which it would not are not counted."""
    match body.change:
        case "cancel":
            return body.now or not job.cancelled
        case "hold":
            return not job.held
        case "release":
            return job.held or any(state.gangs[name].blockers & Blocker.GANG_HELD for name in job.gangs)
        case "requeue":
            return any(state.gangs[name].holds_seats for name in job.gangs)
        case _:
            return job.priority != body.priority or any(
                state.gangs[name].priority != body.priority for name in job.gangs
            )


def _slices(state: State, chosen: Iterable[Selector]) -> Iterator[list[Selector]]:
    """Parts with a bounded number of gangs, or one job."""
    part: list[Selector] = []
    gangs = 0
    for selector in chosen:
        job = state.jobs.get(selector.job)
        size = 1 if job is None else len(job.gangs)
        if part and gangs + size > _GANGS_AT_ONCE:
            yield part
            part, gangs = [], 0
        part.append(selector)
        gangs += size
    if part:
        yield part


def _of_all(part: Sequence[Selector], changing: Changing, noted: _Noted) -> Callable[[State, int], Any]:
    """One command for a slice. Each job is checked against the state as it is then."""

    def command(state: State, now_ms: int) -> list[Event] | Refusal:
        found: list[Event] = []
        for selector in part:
            events = _events(state, selector, changing, now_ms)
            if isinstance(events, Refusal):
                noted.refuse(str(selector), events)
            else:
                noted.changed += 1
                found += events
        return found or Refusal("nothing_changed", "no job was changed")

    return command
