"""What people ask for: each command is checked against the state and becomes events, or a refusal that says why.

Who may ask is not decided here. Nothing here changes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.core import events as e
from corral.core.cluster.resources import GPU_MILLI, Amounts, Demand, amount_of
from corral.core.cluster.topology import NodeSpec
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import Bounds, SiteRules, guarantee_fault, lifts_bound, over_ceiling
from corral.core.intake.submission import faults_of, why_never
from corral.core.intake.volume import Pending, Volume
from corral.core.model import OWN_WILL, Cause, Gang, GangState, JobSpec, QueueSpec, is_hopeless
from corral.core.queues.quota import ROOT
from corral.core.state import State

Answer = list[e.Event] | Refusal
CouldCome = Callable[[Demand], bool]


def submit(state: State, job_id: str, spec: JobSpec, user: str, now_ms: int) -> Answer:
    return submit_many(state, {job_id: spec}, user, now_ms)


def submit_many(
    state: State,
    specs: Mapping[str, JobSpec],
    user: str,
    now_ms: int,
    could_come: CouldCome | None = None,
    account: str = "",
    rules: SiteRules | None = None,
) -> Answer:
    """All of them or none. Jobs may depend on each other, but not in a circle. ``could_come``: whether machines may
    come on which a demand fits that fits on none that is here. ``account``: of the machine, that they run as.
    ``rules``: of the site, on how much there may be."""
    volume, pending = Volume(rules) if rules is not None else None, Pending(state.queues, user, rules)
    bounds = Bounds(state.queues, None)
    for job_id, spec in specs.items():
        refusal = volume.add(spec) if volume is not None else None
        refusal = refusal or _why_not(state, job_id, spec, specs, bounds, now_ms) or pending.add(spec)
        refusal = refusal or _never(state, spec, could_come)
        if refusal is not None:
            return refusal
    ordered = _by_dependency(specs)
    if ordered is None:
        return Refusal("dependency_cycle", "the jobs wait for each other in a circle", field="after")
    return [e.JobSubmitted(now_ms, job_id, specs[job_id], user, account) for job_id in ordered]


def _why_not(
    state: State,
    job_id: str,
    spec: JobSpec,
    batch: Mapping[str, JobSpec],
    bounds: Bounds,
    now_ms: int,
) -> Refusal | None:
    if job_id in state.jobs:
        return Refusal("job_exists", f"there is a job {job_id} already")
    fault = next(faults_of(spec), None)
    if fault is not None:
        return fault
    if spec.queue == ROOT or spec.queue not in state.queues.queues:
        return Refusal("no_such_queue", f"there is no queue {spec.queue!r}", field="queue")
    for dependency in spec.after:
        if dependency.job not in state.jobs and dependency.job not in batch:
            return Refusal("no_such_job", f"there is no job {dependency.job!r} to wait for", field="after")
        if dependency.job in state.jobs and is_hopeless(state.jobs[dependency.job], dependency.after):
            return Refusal(
                "dependency_failed",
                f"job {dependency.job} is over and did not end {dependency.after}",
                field="after",
            )
    if spec.deadline_ms is not None and spec.deadline_ms <= now_ms:
        return Refusal("deadline_passed", "the deadline is in the past", field="deadline_ms")
    return bounds.over(spec)


def _never(state: State, spec: JobSpec, could_come: CouldCome | None) -> Refusal | None:
    """Why it could not run, whoever else left."""
    for gang in spec.gangs:
        never = why_never(state, gang.demand)
        if never is not None and (could_come is None or not could_come(gang.demand)):
            return never
        if state.queues.is_bounded(spec.queue):
            over = _over_hard_limit(state, spec, gang.demand.charge(gang.demand.smallest))
            if over is not None:
                return over
    return None


def _over_hard_limit(state: State, spec: JobSpec, charge: Mapping[str, int]) -> Refusal | None:
    """A gang larger than a limit that no scheduled change will lift could never start."""
    queues = state.queues.queues
    budgets = [b for name in state.queues.path(spec.queue) if (b := queues[name].spec.budget) is not None]
    expected_ms = spec.expected_ms or state.settings.default_expected_ms
    for dimension, asked in charge.items():
        for name in state.queues.path(spec.queue):
            terms = queues[name].spec
            stated = amount_of(terms.limit, dimension)
            if stated is not None:
                raised = stated + sum(max(0, amount_of(change.limit, dimension) or 0) for change in terms.changes)
                if asked > raised:
                    why = f"{asked} {dimension} is more than the limit of queue {name or 'cluster'}: {stated}"
                    return Refusal("over_queue_limit", why, "ask for less", "queue")
        budget = next((b for b in budgets if dimension == GPU_MILLI and asked * expected_ms // 1000 > b.gpu_ms), None)
        if budget is not None:
            why = f"it would use {asked * expected_ms // 1000} GPU-ms, a whole window of the budget has {budget.gpu_ms}"
            return Refusal("over_budget", why, "ask for less, or for a shorter time", "queue")
        mine = amount_of(queues[spec.queue].spec.user_limit, dimension)
        if mine is not None and asked > mine:
            why = f"{asked} {dimension} is more than a user may have in {spec.queue}: {mine}"
            return Refusal("over_user_limit", why, "ask for less", "queue")
    return None


def _by_dependency(specs: Mapping[str, JobSpec]) -> list[str] | None:
    """The jobs with every job after those it waits for: by how many stand before it in the longest chain, then in the
    given order; None if that cannot be. Linear in the jobs and what they wait for."""
    if not any(spec.after for spec in specs.values()):
        return list(specs)
    followers: dict[str, list[str]] = {}
    missing: dict[str, int] = {}  # job -> how many that it waits for are not ordered yet
    for job_id, spec in specs.items():
        inside = {dependency.job for dependency in spec.after if dependency.job in specs}
        missing[job_id] = len(inside)
        for parent in inside:
            followers.setdefault(parent, []).append(job_id)
    depth = {job_id: 0 for job_id, count in missing.items() if not count}
    ready = list(depth)
    for job_id in ready:  # grows while it is walked
        for follower in followers.get(job_id, ()):
            missing[follower] -= 1
            if not missing[follower]:
                depth[follower] = depth[job_id] + 1  # the last of its parents to be ordered is as deep as any
                ready.append(follower)
    if len(ready) < len(specs):
        return None
    return sorted(specs, key=depth.__getitem__)


def cancel(state: State, job_id: str, now_ms: int, at_once: bool = False) -> Answer:
    """End a job for good. ``at_once``: without grace, also where it is being cancelled with grace already."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if job.is_over:
        return Refusal("job_over", f"job {job_id} is over already")
    found: list[e.Event] = [] if job.cancelled else [e.JobCancelled(now_ms, job_id)]
    for name in job.gangs:
        found += _cancel_gang(state, state.gangs[name], now_ms, at_once)
    if not found:
        return Refusal("job_over", f"job {job_id} is being cancelled")
    return found


def _cancel_gang(state: State, gang: Gang, now_ms: int, at_once: bool) -> list[e.Event]:
    if gang.is_over:
        return []
    if gang.state is GangState.WAITING:
        return [e.GangFinished(now_ms, gang.id, gang.attempt, GangState.CANCELLED, "cancelled")]
    if not at_once:
        return [] if state.jobs[gang.job].cancelled else evict(state, gang, Cause.CANCEL, now_ms)
    evicted: list[e.Event] = []
    if gang.state is not GangState.STOPPING:
        evicted = [e.GangEvicted(now_ms, gang.id, gang.attempt, Cause.CANCEL, now_ms, is_charged=True)]
    return [] if gang.grace_over else [*evicted, e.GraceEnded(now_ms, gang.id, gang.attempt)]


def evict(state: State, gang: Gang, cause: Cause, now_ms: int) -> list[e.Event]:
    """Ask a gang that holds seats to leave, unless it is leaving already."""
    if gang.state is GangState.STOPPING:
        return []
    deadline = now_ms + state.jobs[gang.job].spec.grace_ms
    return [e.GangEvicted(now_ms, gang.id, gang.attempt, cause, deadline, is_charged=cause in OWN_WILL)]


def forget(state: State, job_id: str, now_ms: int) -> Answer:
    """Let go of a job that is over. Others that wait for it were told at its end."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if not job.is_over:
        return Refusal("job_not_over", f"job {job_id} is not over")
    return [e.JobForgotten(now_ms, job_id)]


def hold(state: State, job_id: str, now_ms: int) -> Answer:
    """Keep a job from starting. What runs goes on."""
    return quarantine(state, job_id, "", now_ms)


def quarantine(state: State, job_id: str, why: str, now_ms: int) -> Answer:
    """The same, by the server itself and for a reason: planning failed because of the job."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if job.is_over or job.held:
        return Refusal("cannot_hold", f"job {job_id} is {'over' if job.is_over else 'held'} already")
    drops = [state.gangs[name] for name in job.gangs if state.gangs[name].claim]
    dropped: list[e.Event] = [e.ClaimDropped(now_ms, gang.id, gang.attempt) for gang in drops]
    return [*dropped, e.JobHeld(now_ms, job_id, why)]


def release(state: State, job_id: str, now_ms: int) -> Answer:
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if not job.held:
        return Refusal("not_held", f"job {job_id} is not held")
    return [e.JobReleased(now_ms, job_id)]


def requeue(state: State, job_id: str, now_ms: int) -> Answer:
    """Stop what runs of a job, with grace, and let it wait again."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    holding = [state.gangs[name] for name in job.gangs if state.gangs[name].holds_seats]
    if not holding:
        return Refusal("not_running", f"nothing of job {job_id} runs")
    return [event for gang in holding for event in evict(state, gang, Cause.REQUEUE, now_ms)]


def change_priority(state: State, job_id: str, priority: int, now_ms: int, rules: SiteRules | None = None) -> Answer:
    """``rules``: of the site, for whom they bind."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if job.is_over:
        return Refusal("job_over", f"job {job_id} is over")
    bound = over_ceiling(state.queues, job.spec.queue, priority, rules)
    if bound is not None:
        return bound
    return [e.PriorityChanged(now_ms, job_id, priority)]


def _no_job(job_id: str) -> Refusal:
    return Refusal("no_such_job", f"there is no job {job_id!r}")


def set_queue(state: State, spec: QueueSpec, now_ms: int, rules: SiteRules | None = None) -> Answer:
    """Make a queue or change its terms. Guarantees below one queue may not sum to more than its own. ``rules``: of the
    site, for those who may share out what there is above the queue, but not give more."""
    refusal = _queue_fault(state, spec) or guarantee_fault(state.queues, spec, rules is None, now_ms)
    if refusal is None and rules is not None:
        refusal = lifts_bound(state.queues, spec, rules)
    return [e.QueueSet(now_ms, spec)] if refusal is None else refusal


def _queue_fault(state: State, spec: QueueSpec) -> Refusal | None:
    if not spec.name or any(not part for part in spec.name.split("/")):
        return Refusal("bad_name", f"{spec.name!r} is not a queue name", "use org/team/project", "name")
    if spec.parent not in state.queues.queues:
        return Refusal("no_such_queue", f"there is no queue {spec.parent!r} to put {spec.name!r} under", field="name")
    stated: dict[str, Amounts] = {
        "guarantee": spec.guarantee, "limit": spec.limit, "lend": spec.lend, "user_limit": spec.user_limit
    }  # fmt: skip
    for field, given in stated.items():
        if any(value < 0 for _, value in given):
            return Refusal("negative_amount", f"{field} has a negative amount", field=field)
    for field in ("max_jobs", "max_jobs_per_user", "time_share", "grace_max_ms"):
        if (getattr(spec, field) or 0) < 0:
            return Refusal("negative_amount", f"{field} is negative", field=field)
    if spec.weight < 1:
        return Refusal("bad_weight", f"weight is {spec.weight}, it must be at least 1", field="weight")
    if spec.budget is not None and (spec.budget.gpu_ms < 0 or spec.budget.window_ms <= 0):
        return Refusal("bad_budget", "a budget needs a window and cannot be negative", field="budget")
    if any(change.until_ms <= change.from_ms for change in spec.changes):
        return Refusal("bad_change", "a scheduled change ends before it begins", field="changes")
    limits = dict(spec.limit)
    for name, promised in spec.guarantee:
        if name in limits and promised > limits[name]:
            return Refusal("guarantee_over_limit", f"the guarantee of {name} is above the limit", field="guarantee")
    return None


def remove_queue(state: State, name: str, now_ms: int) -> Answer:
    queue = state.queues.queues.get(name)
    if queue is None or name == ROOT:
        return Refusal("no_such_queue", f"there is no queue {name!r}")
    if queue.children or queue.jobs:
        return Refusal(
            "queue_not_empty", f"queue {name} has {queue.jobs} jobs and {len(queue.children)} queues below it"
        )
    return [e.QueueRemoved(now_ms, name)]


def add_node(state: State, spec: NodeSpec, now_ms: int) -> Answer:
    """A machine joins, or tells of itself anew. A changed description waits until nothing runs on it."""
    known = state.nodes.get(spec.name)
    if not spec.name:
        return Refusal("bad_name", "a node needs a name", field="name")
    if known is not None and known.spec != spec and is_in_use(state, spec.name):
        return Refusal("node_in_use", f"node {spec.name} changed while gangs hold seats on it", "drain it first")
    if len(spec.path) != len(state.settings.levels):
        return Refusal(
            "bad_path",
            f"node {spec.name} names {len(spec.path)} domains, the topology has {len(state.settings.levels)} levels",
            field="path",
        )
    if any(amount < 0 for _, amount in spec.amounts) or any(gpu.vram_mib <= 0 for gpu in spec.gpus):
        return Refusal("negative_amount", f"node {spec.name} has an amount that cannot be", field="amounts")
    return _gpu_of_another(state, spec) or [e.NodeAdded(now_ms, spec)]


def _gpu_of_another(state: State, spec: NodeSpec) -> Refusal | None:
    """A GPU is in one machine. One whose machine is lost and empty may have moved to another."""
    for slot, gpu in enumerate(spec.gpus):
        owner = state.gpu_owners.get(gpu.uuid, spec.name)
        if gpu.uuid and owner != spec.name and not (state.nodes[owner].lost and not is_in_use(state, owner)):
            return Refusal(
                "gpu_of_another_node",
                f"GPU {slot} of node {spec.name} has the UUID {gpu.uuid}, which node {owner} has already",
                f"if the card has moved: corral node remove {owner}",
                field="gpus",
            )
    return None


def remove_node(state: State, name: str, now_ms: int) -> Answer:
    if name not in state.nodes:
        return _no_node(name)
    if is_in_use(state, name):
        return Refusal("node_in_use", f"gangs hold seats on node {name}", "drain it first")
    return [e.NodeRemoved(now_ms, name)]


def is_in_use(state: State, name: str) -> bool:
    """Whether a gang has a seat on the node, or a claim to one."""
    return bool(state.tenants[name]) or any(
        seat.node == name for gang in state.claimants.values() for seat in gang.claim
    )


def drain(state: State, name: str, now_ms: int) -> Answer:
    if name not in state.nodes:
        return _no_node(name)
    if state.nodes[name].drained:
        return Refusal("already_drained", f"node {name} is being drained already")
    return [e.NodeDrained(now_ms, name)]


def undrain(state: State, name: str, now_ms: int) -> Answer:
    if name not in state.nodes:
        return _no_node(name)
    if not state.nodes[name].drained:
        return Refusal("not_drained", f"node {name} is not drained")
    return [e.NodeUndrained(now_ms, name)]


def _no_node(name: str) -> Refusal:
    return Refusal("no_such_node", f"there is no node {name!r}")
