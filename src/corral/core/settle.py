"""What follows an end: after an attempt the gang succeeds, is requeued or fails; after a job, its dependents.

Pure: from the state and the way it ended to events.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from corral.core import events as e
from corral.core.cluster.resources import MEMORY_MIB, amounts
from corral.core.intake.never_fits import why_never
from corral.core.model import (
    CRASH_LOOP,
    INFRASTRUCTURE,
    OUTER,
    PREEMPTING,
    QUICK_MS,
    After,
    Blocker,
    Cause,
    FailureClass,
    FirstFailure,
    Gang,
    GangState,
    Health,
    Job,
    JobSpec,
    Profile,
    RetryRule,
    earlier,
    is_hopeless,
    unfulfilled,
)
from corral.core.state import State

BACKOFF_MAX_MS = 600_000
AVOID_MAX = 3

#: Ends that the scheduler or a user decided.
_BY_DECISION = frozenset({FailureClass.PREEMPTED, FailureClass.CANCELLED, FailureClass.TIME_LIMIT})
#: Causes of eviction after which the gang is requeued.
_RETURNING = PREEMPTING | {Cause.GROW, Cause.MOVE, Cause.DRAIN, Cause.REQUEUE}


def settle(
    state: State,
    gang: Gang,
    now_ms: int,
    exit_code: int,
    failure: FailureClass | None,
    node: str = "",
    first: FirstFailure | None = None,
) -> list[e.Event]:
    """The events that end the current attempt and decide what follows. All its tasks have ended. ``first``: the first
    failure in the task that ended last."""
    exit_code = gang.exit_code or exit_code
    job = state.jobs[gang.job]
    saved_on_leaving = gang.eviction is not None and gang.saved_ms >= gang.eviction.since_ms > 0
    failure = _classify(gang, job.spec, exit_code, failure, saved_on_leaving)
    first = _root(gang, failure, first)
    exit_code = exit_code if first is None else first.exit_code
    kept_ms = gang.done_ms + _safe_ms(gang, now_ms, failure)
    lost_ms = max(0, _ran_ms(gang, now_ms) - (kept_ms - gang.done_ms))
    stopped = e.GangStopped(
        now_ms,
        gang.id,
        gang.attempt,
        failure,
        exit_code,
        gang.gpu_milli * lost_ms // 1000,
        kept_ms,
        by_window=True,
        first_failure=first,
    )
    if job.cancelled or gang.cancelled:
        return [stopped, _finish(gang, GangState.CANCELLED, "cancelled", now_ms, FailureClass.CANCELLED)]
    if failure is None:
        if _asks_for_more(job.spec, exit_code, saved_on_leaving):
            return [stopped, _once_more(gang, now_ms)]
        return [stopped, _finish(gang, GangState.SUCCEEDED, "", now_ms)]
    if failure is FailureClass.PREEMPTED:
        has_yielded = gang.eviction is not None and gang.eviction.cause is Cause.TIME_SHARE
        profile = _moved_profile(state, gang)
        return [stopped, e.GangRequeued(now_ms, gang.id, gang.attempt, profile=profile, at_end=has_yielded)]
    return [stopped, *_after_failure(state, gang, job.spec, failure, node, now_ms, first)]


def _moved_profile(state: State, gang: Gang) -> Profile | None:
    """The profile of a gang that leaves a node because it is slow: without that node. None: unchanged."""
    if gang.eviction is None or gang.eviction.cause is not Cause.MOVE or not gang.eviction.node:
        return None
    profile = _next_profile(state, gang, RetryRule(avoid_node=True), gang.eviction.node)
    return profile if profile != gang.profile else None


def _root(gang: Gang, failure: FailureClass | None, last: FirstFailure | None) -> FirstFailure | None:
    """The failure that ended the attempt. Beside a lost task, plain failures are only the consequence; and what fails
    while it is stopped for another reason has not ended it."""
    eviction = gang.eviction
    if failure is None or failure in _BY_DECISION or gang.blamed is not None or failure is FailureClass.NODE_LOST:
        return None
    if eviction is None:
        return earlier(gang.first_failure, last)
    if eviction.cause is not Cause.FAILURE:
        return None
    return gang.first_failure if eviction.failure in OUTER else earlier(gang.first_failure, last)


def _classify(
    gang: Gang, spec: JobSpec, exit_code: int, failure: FailureClass | None, saved_on_leaving: bool
) -> FailureClass | None:
    """How the attempt ended. An evicted gang that stopped is preempted, whatever its exit code."""
    eviction = gang.eviction
    if eviction is None:
        if failure is not None or exit_code in (0, spec.requeue_exit):
            return failure
        return FailureClass.USER_ERROR
    is_fine = failure is None and exit_code in (0, spec.requeue_exit)
    if eviction.cause in _RETURNING:
        return None if is_fine and exit_code == 0 and not saved_on_leaving else FailureClass.PREEMPTED
    if eviction.cause is Cause.TIME_LIMIT:
        return None if is_fine else FailureClass.TIME_LIMIT
    if eviction.cause is Cause.START_TIMEOUT:
        return FailureClass.START_FAILED
    if eviction.cause is Cause.CANCEL:
        return FailureClass.CANCELLED
    if eviction.cause is Cause.FAILURE and eviction.failure not in OUTER:
        taken = gang.blamed or (failure if failure in OUTER else None)
        if taken is not None:
            return taken  # the rest failed because of it
    return eviction.failure or FailureClass.USER_ERROR


def _asks_for_more(spec: JobSpec, exit_code: int, saved_on_leaving: bool) -> bool:
    """Whether the job asks to be requeued: by its `requeue_exit`, or by 0 after a checkpoint saved while stopping."""
    return exit_code == spec.requeue_exit or saved_on_leaving


def _ran_ms(gang: Gang, now_ms: int) -> int:
    return now_ms - gang.started_ms if gang.started_ms else 0


def _safe_ms(gang: Gang, now_ms: int, failure: FailureClass | None) -> int:
    """The running time of this attempt that is not lost: all if it succeeded, else up to the last checkpoint."""
    if failure is None:
        return _ran_ms(gang, now_ms)
    return max(0, gang.saved_ms - gang.started_ms) if gang.saved_ms and gang.started_ms else 0


def _once_more(gang: Gang, now_ms: int) -> e.Event:
    """Requeue at the request of the job. Repeated quick requests count as a crash loop."""
    is_quick = gang.eviction is None and not gang.saved_ms and _ran_ms(gang, now_ms) < QUICK_MS
    if is_quick and gang.quick_failures + 1 >= CRASH_LOOP:
        return _finish(gang, GangState.FAILED, "crash loop", now_ms, FailureClass.USER_ERROR)
    return e.GangRequeued(now_ms, gang.id, gang.attempt, is_quick=is_quick)


def _finish(
    gang: Gang, ending: GangState, why: str, now_ms: int, failure: FailureClass | None = None
) -> e.GangFinished:
    return e.GangFinished(now_ms, gang.id, gang.attempt, ending, why, failure)


def _after_failure(
    state: State,
    gang: Gang,
    spec: JobSpec,
    failure: FailureClass,
    node: str,
    now_ms: int,
    first: FirstFailure | None,
) -> list[e.Event]:
    rule = spec.retry_rule(failure)
    is_quick = not gang.saved_ms and _ran_ms(gang, now_ms) < QUICK_MS and failure is not FailureClass.START_FAILED
    if is_quick and gang.quick_failures + 1 >= CRASH_LOOP:
        return [_finish(gang, GangState.FAILED, _why("crash loop", first), now_ms, failure)]
    used = gang.retries.get(failure, 0)
    if rule.count is not None and used >= rule.count:
        why = _loss(gang) or str(failure)
        is_plain = failure is FailureClass.USER_ERROR and first is not None and first.text
        return [_finish(gang, GangState.FAILED, _why("" if is_plain else why, first), now_ms, failure)]
    node = _where(gang, failure, node)
    if failure is FailureClass.GPU_FAULT and _is_fenced(state, gang, node):
        rule = replace(rule, avoid_node=False, backoff_ms=0)
    profile = _next_profile(state, gang, rule, node)
    backoff = min(BACKOFF_MAX_MS, rule.backoff_ms << min(16, max(used, gang.quick_failures)))
    return [
        e.GangRequeued(
            now_ms,
            gang.id,
            gang.attempt,
            not_before_ms=now_ms + backoff if backoff else 0,
            at_head=failure in INFRASTRUCTURE,
            counted=failure,
            is_quick=is_quick,
            profile=profile if profile != gang.profile else None,
        )
    ]


def _loss(gang: Gang) -> str:
    """The lost task that made the others fail, if it is known where it was."""
    if gang.blamed is None or not gang.blamed_node:
        return ""
    if gang.blamed is FailureClass.NODE_LOST:
        return f"node {gang.blamed_node} was lost"
    return f"{gang.blamed.replace('_', ' ')} on {gang.blamed_node}"


def _why(kind: str, first: FirstFailure | None) -> str:
    """The kind of a failure and how it began, in one line."""
    return ": ".join(part for part in (kind.replace("_", " ") if first else kind, first.text if first else "") if part)


def _where(gang: Gang, failure: FailureClass, node: str) -> str:
    """The node of the failure. ``node``: of the task that ended last."""
    if gang.blamed_node or gang.eviction is None:
        return gang.blamed_node or node
    is_first = gang.eviction.failure is failure and gang.eviction.node
    return gang.eviction.node if is_first or not node else node


def _is_fenced(state: State, gang: Gang, node: str) -> bool:
    """Whether one of its GPUs there is known to have failed: that GPU gets no tasks, and the other GPUs of the node can
    be used. Otherwise the node must be avoided."""
    known = state.nodes.get(node)
    failed = 0 if known is None else sum(1 << n for n, is_ in known.gpu_health.items() if is_ is Health.FAILED)
    return any(seat.node == node and seat.gpus & failed for seat in gang.seats)


def _next_profile(state: State, gang: Gang, rule: RetryRule, node: str) -> Profile:
    """The profile of the next attempt: avoiding the failed node, with more memory, if the rule says so and it fits."""
    profile = gang.profile
    if rule.grow_memory_percent:
        task = profile.demand.task
        grown = {
            name: value * (100 + rule.grow_memory_percent) // 100 if name == MEMORY_MIB else value
            for name, value in task.amounts
        }
        bigger = _replace_task(profile, grown)
        profile = bigger if why_never(state, bigger.demand) is None else profile
    if rule.avoid_node and node and node not in profile.avoid:
        avoiding = replace(profile, avoid=(*profile.avoid, node)[-AVOID_MAX:])
        profile = avoiding if why_never(state, avoiding.demand, avoiding.avoid) is None else profile
    return profile


def _replace_task(profile: Profile, grown: dict[str, int]) -> Profile:
    demand = replace(profile.demand, task=replace(profile.demand.task, amounts=amounts(grown)))
    return replace(profile, demand=demand)


def follow_up(state: State, now_ms: int) -> list[e.Event]:
    """Follow-up events: a gang without running tasks has stopped; an ended job releases or cancels its dependents."""
    found: list[e.Event] = []
    for gang in state.gangs_to_settle.values():
        found += settle(state, gang, now_ms, 0, FailureClass.NODE_LOST if gang.lost else None)
    ended: dict[str, list[tuple[Job, After]]] = {}  # dependent -> ended jobs, and the kind of dependency
    for job_id in state.jobs_to_settle:
        job = state.jobs[job_id]
        if not job.is_over:
            gang = state.gangs[job.parked[-1]]
            found.append(e.GangAwoke(now_ms, gang.id, gang.attempt, Blocker.ARRAY))
            continue
        found.append(e.JobEnded(now_ms, job_id, job.succeeded))
        for dependent, after in state.dependents.get(job_id, ()):
            ended.setdefault(dependent, []).append((job, after))
        if (first := _first_of_its_name(state, job)) is not None:
            ended.setdefault(first, [])
    for job_id, parents in ended.items():
        if job_id in state.jobs:  # otherwise it was cancelled and dropped meanwhile
            found += _dependency_news(state, state.jobs[job_id], parents, now_ms)
    return found


def _first_of_its_name(state: State, job: Job) -> str | None:
    """The oldest unfinished job with the same user and name."""
    return next(iter(state.namesakes.get((job.user, job.spec.name), ())), None)


def _dependency_news(state: State, job: Job, ended: Sequence[tuple[Job, After]], now_ms: int) -> list[e.Event]:
    """What follows for a job from the end of some of its dependencies.

    Equivalent to checking all its dependencies: earlier ends would have cancelled it then, and of the others only the
    number matters.
    """
    waiting = [g for g in (state.gangs[name] for name in job.gangs) if g.blockers & Blocker.DEPENDENCY]
    if not waiting:
        return []
    hopeless = {(parent.id, after) for parent, after in ended if is_hopeless(parent, after)}
    if hopeless:
        parent, after = next(iter(hopeless))
        if len(hopeless) > 1:  # the one that the job names first
            parent, after = next((d.job, d.after) for d in job.spec.after if (d.job, d.after) in hopeless)
        return [_finish(gang, GangState.CANCELLED, unfulfilled(parent, after), now_ms) for gang in waiting]
    is_next = not job.spec.singleton or _first_of_its_name(state, job) == job.id
    if state.awaited.get(job.id, 0) > len(ended) or not is_next:
        return []
    return [e.GangAwoke(now_ms, gang.id, gang.attempt, Blocker.DEPENDENCY) for gang in waiting]
