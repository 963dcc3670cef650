"""Commands of users: each is checked against the state and becomes events, or a refusal that says why.

Rights are not decided here. Nothing here changes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.amount_text import gpu_hours, quantity
from corral.core import events as e
from corral.core.cluster.resources import GPU_MILLI, Amounts, Demand, amount_of
from corral.core.cluster.topology import NodeSpec
from corral.core.intake.never_fits import why_never
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules, guarantee_fault, lifts_bound, over_bounds, over_ceiling
from corral.core.intake.submission import faults_of
from corral.core.intake.volume import Volume, why_full
from corral.core.model import OWN_WILL, Blocker, Cause, Gang, GangState, JobSpec, QueueSpec, is_hopeless, unfulfilled
from corral.core.queues import lending
from corral.core.queues.budget import most_in_a_window
from corral.core.queues.quota import ROOT
from corral.core.state import State, node_total

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
    """Submit all jobs or none. Jobs may depend on each other, but not in a cycle. ``could_come``: whether fleets may
    add nodes for a demand that fits on no current node. ``account``: of the machine, that the jobs run as. ``rules``:
    limits of the site."""
    volume = Volume(rules) if rules is not None else None
    for job_id, spec in specs.items():
        refusal = volume.add(spec) if volume is not None else None
        refusal = refusal or _why_not(state, job_id, spec, specs, now_ms) or _never(state, spec, could_come)
        if refusal is not None:
            return refusal
    full = why_full(state.queues, user, specs.values(), rules)
    if full is not None:
        return full
    ordered = _by_dependency(specs)
    if ordered is None:
        return Refusal("dependency_cycle", "the jobs depend on each other in a cycle", "break the cycle", "after")
    return [e.JobSubmitted(now_ms, job_id, specs[job_id], user, account) for job_id in ordered]


def _why_not(state: State, job_id: str, spec: JobSpec, batch: Mapping[str, JobSpec], now_ms: int) -> Refusal | None:
    if job_id in state.jobs:
        return Refusal("job_exists", f"there is already a job {job_id}")
    fault = next(faults_of(spec), None)
    if fault is not None:
        return fault
    if spec.queue == ROOT or spec.queue not in state.queues.queues:
        return Refusal("no_such_queue", f"there is no queue {spec.queue!r}", field="queue")
    for dependency in spec.after:
        if dependency.job not in state.jobs and dependency.job not in batch:
            why = f"there is no job {dependency.job!r} to depend on"
            return Refusal("no_such_job", why, "name an earlier job: corral ps --over", "after")
        if dependency.job in state.jobs and is_hopeless(state.jobs[dependency.job], dependency.after):
            return Refusal(
                "dependency_failed",
                f"the job {unfulfilled(dependency.job, dependency.after)}",
                "remove the dependency",
                "after",
            )
    if spec.deadline_ms is not None and spec.deadline_ms <= now_ms:
        return Refusal("deadline_passed", "the deadline is in the past", "give a later time", "deadline_ms")
    return over_bounds(state.queues, spec, None)


def _never(state: State, spec: JobSpec, could_come: CouldCome | None) -> Refusal | None:
    """Why the job could never run, even on an empty cluster."""
    for gang in spec.gangs:
        never = why_never(state, gang.demand)
        if never is not None and (could_come is None or not could_come(gang.demand)):
            return never
        if state.queues.is_bounded(spec.queue):
            over = _over_hard_limit(state, spec, state.topology.least_charge(gang.demand, gang.demand.smallest))
            if over is not None:
                return over
            if could_come is None or not could_come(gang.demand):
                kept = _never_lent(state, spec.queue, state.topology.least_charge(gang.demand, gang.demand.smallest))
                if kept is not None:
                    return kept
    return None


def _never_lent(state: State, queue: str, charge: Mapping[str, int]) -> Refusal | None:
    """Refuse a gang that needs more than other queues will ever lend to its queue. Scheduled changes of queues may
    still make it possible, so nothing is refused then."""
    tree = state.queues
    for dimension, asked in charge.items():
        if dimension not in tree.kept_back or any(each.spec.changes for each in tree.queues.values()):
            continue
        kept = lending.never_lent(tree, queue, dimension, 0)
        if asked <= tree.total.get(dimension, 0) - kept or lending.is_guaranteed(tree, queue, dimension, asked, 0):
            continue
        whole = sum(node_total(node.spec).get(dimension, 0) for node in state.nodes.values())
        if kept and asked > whole - kept:
            why = (
                f"queue {queue} can never borrow {quantity(dimension, asked)}: other queues do not lend "
                f"{quantity(dimension, kept)} of {quantity(dimension, whole)}"
            )
            return Refusal("never_lent", why, "request less, or use a queue with a guarantee", "queue")
    return None


def _over_hard_limit(state: State, spec: JobSpec, charge: Mapping[str, int]) -> Refusal | None:
    """Refuse a gang that is larger than a limit, if no scheduled change raises the limit."""
    queues = state.queues.queues
    budgets = [b for name in state.queues.path(spec.queue) if (b := queues[name].spec.budget) is not None]
    expected_ms = spec.expected_ms or state.settings.default_expected_ms
    for dimension, asked in charge.items():
        wanted = f"the job requests {quantity(dimension, asked)}"
        for name in state.queues.path(spec.queue):
            terms = queues[name].spec
            stated = amount_of(terms.limit, dimension)
            if stated is not None:
                raised = stated + sum(max(0, amount_of(change.limit, dimension) or 0) for change in terms.changes)
                if asked > raised:
                    why = f"{wanted}; the limit of queue {name or 'cluster'} is {quantity(dimension, stated)}"
                    return Refusal("over_queue_limit", why, "request less, or use another queue: corral queue", "queue")
        for budget in budgets if dimension == GPU_MILLI else ():
            most = most_in_a_window(budget, asked, expected_ms)
            if most > budget.gpu_ms:
                why = f"the job would use {gpu_hours(most)} in one window; its budget is {gpu_hours(budget.gpu_ms)}"
                return Refusal("over_budget", why, "request less, or a shorter time", "queue")
        mine = amount_of(queues[spec.queue].spec.user_limit, dimension)
        if mine is not None and asked > mine:
            why = f"{wanted}; the limit of a user in {spec.queue} is {quantity(dimension, mine)}"
            return Refusal("over_user_limit", why, "request less, or use another queue: corral queue", "queue")
    return None


def _by_dependency(specs: Mapping[str, JobSpec]) -> list[str] | None:
    """The jobs with every job after its dependencies: by length of the longest chain before it, then in the given
    order; None if there is a cycle. Linear in the number of jobs and dependencies."""
    if not any(spec.after for spec in specs.values()):
        return list(specs)
    followers: dict[str, list[str]] = {}
    missing: dict[str, int] = {}  # job -> number of its dependencies that are not ordered yet
    for job_id, spec in specs.items():
        inside = {dependency.job for dependency in spec.after if dependency.job in specs}
        missing[job_id] = len(inside)
        for parent in inside:
            followers.setdefault(parent, []).append(job_id)
    depth = {job_id: 0 for job_id, count in missing.items() if not count}
    ready = list(depth)
    for job_id in ready:  # grows during the iteration
        for follower in followers.get(job_id, ()):
            missing[follower] -= 1
            if not missing[follower]:
                depth[follower] = depth[job_id] + 1  # the last of its parents is the deepest
                ready.append(follower)
    if len(ready) < len(specs):
        return None
    return sorted(specs, key=depth.__getitem__)


def cancel(state: State, job_id: str, now_ms: int, at_once: bool = False) -> Answer:
    """Cancel a job. ``at_once``: without grace, even if it is being cancelled with grace."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if job.is_over:
        return Refusal("job_over", f"job {job_id} has already ended")
    found: list[e.Event] = [] if job.cancelled else [e.JobCancelled(now_ms, job_id)]
    for name in job.gangs:
        found += _cancel_gang(state, state.gangs[name], now_ms, at_once)
    if not found:
        return Refusal("job_over", f"job {job_id} is already being cancelled")
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
    """Evict a gang that holds seats, unless it is already stopping."""
    if gang.state is GangState.STOPPING:
        return []
    deadline = now_ms + state.jobs[gang.job].spec.grace_ms
    return [e.GangEvicted(now_ms, gang.id, gang.attempt, cause, deadline, is_charged=cause in OWN_WILL)]


def forget(state: State, job_id: str, now_ms: int) -> Answer:
    """Drop an ended job from memory. Its dependents were handled when it ended."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if not job.is_over:
        return Refusal("job_not_over", f"job {job_id} has not ended")
    return [e.JobForgotten(now_ms, job_id)]


def hold(state: State, job_id: str, now_ms: int) -> Answer:
    """Hold a job: it does not start. Running gangs continue."""
    return quarantine(state, job_id, "", now_ms)


def quarantine(state: State, job_id: str, why: str, now_ms: int) -> Answer:
    """Hold a job because planning failed with it."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if job.is_over or job.held:
        return Refusal("cannot_hold", f"job {job_id} {'has already ended' if job.is_over else 'is already held'}")
    drops = [state.gangs[name] for name in job.gangs if state.gangs[name].claim]
    dropped: list[e.Event] = [e.ClaimDropped(now_ms, gang.id, gang.attempt) for gang in drops]
    return [*dropped, e.JobHeld(now_ms, job_id, why)]


def release(state: State, job_id: str, now_ms: int) -> Answer:
    """Release a held job, and those of its gangs that are held by themselves."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if not job.held and not any(state.gangs[name].blockers & Blocker.GANG_HELD for name in job.gangs):
        return Refusal("not_held", f"job {job_id} is not held")
    return [e.JobReleased(now_ms, job_id)]


def requeue(state: State, job_id: str, now_ms: int) -> Answer:
    """Stop the running gangs of a job, with grace, and requeue them."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    holding = [state.gangs[name] for name in job.gangs if state.gangs[name].holds_seats]
    if not holding:
        return Refusal("not_running", f"job {job_id} is not running")
    return [event for gang in holding for event in evict(state, gang, Cause.REQUEUE, now_ms)]


def change_priority(state: State, job_id: str, priority: int, now_ms: int, rules: SiteRules | None = None) -> Answer:
    """Change the priority of a job. ``rules``: limits of the site; None for users who may exceed them."""
    job = state.jobs.get(job_id)
    if job is None:
        return _no_job(job_id)
    if job.is_over:
        return Refusal("job_over", f"job {job_id} has ended")
    bound = over_ceiling(state.queues, job.spec.queue, priority, rules)
    if bound is not None:
        return bound
    return [e.PriorityChanged(now_ms, job_id, priority)]


def _no_job(job_id: str) -> Refusal:
    return Refusal("no_such_job", f"there is no job {job_id!r}")


def set_queue(state: State, spec: QueueSpec, now_ms: int, rules: SiteRules | None = None) -> Answer:
    """Create or change a queue. Guarantees of child queues must not exceed that of the parent. ``rules``: limits of the
    site, for users who may divide what the parent has but not exceed it; None for administrators."""
    refusal = _queue_fault(state, spec) or guarantee_fault(state.queues, spec, rules is None, now_ms)
    if refusal is None and rules is not None:
        refusal = lifts_bound(state.queues, spec, rules)
    return [e.QueueSet(now_ms, spec)] if refusal is None else refusal


def _queue_fault(state: State, spec: QueueSpec) -> Refusal | None:
    if not spec.name or any(not part for part in spec.name.split("/")):
        return Refusal("bad_name", f"{spec.name!r} is not a valid queue name", "use org/team/project", "name")
    if spec.parent not in state.queues.queues:
        why = f"there is no queue {spec.parent!r}, the parent of {spec.name!r}"
        return Refusal("no_such_queue", why, f"create it first: corral queue set {spec.parent}", "name")
    stated: dict[str, Amounts] = {
        "guarantee": spec.guarantee,
        "limit": spec.limit,
        "lend": spec.lend,
        "user_limit": spec.user_limit,
    }
    for field, given in stated.items():
        if any(value < 0 for _, value in given):
            return Refusal("negative_amount", f"{field} has a negative amount", field=field)
    for field in ("max_jobs", "max_jobs_per_user", "time_share", "grace_max_ms"):
        if (getattr(spec, field) or 0) < 0:
            return Refusal("negative_amount", f"{field} is negative", field=field)
    if spec.weight < 1:
        return Refusal("bad_weight", f"weight is {spec.weight}; it must be at least 1", field="weight")
    if spec.budget is not None and (spec.budget.gpu_ms < 0 or spec.budget.window_ms <= 0):
        return Refusal("bad_budget", "a budget needs a window and must not be negative", field="budget")
    if any(change.until_ms <= change.from_ms for change in spec.changes):
        return Refusal("bad_change", "a scheduled change ends before it starts", field="changes")
    limits = dict(spec.limit)
    for name, guaranteed in spec.guarantee:
        if name in limits and guaranteed > limits[name]:
            why = f"the guarantee, {quantity(name, guaranteed)}, is above the limit, {quantity(name, limits[name])}"
            return Refusal("guarantee_over_limit", why, "raise the limit, or guarantee less", "guarantee")
    return None


def remove_queue(state: State, name: str, now_ms: int) -> Answer:
    queue = state.queues.queues.get(name)
    if queue is None or name == ROOT:
        return Refusal("no_such_queue", f"there is no queue {name!r}")
    if queue.children or queue.jobs:
        return _not_empty(name, queue.jobs, sorted(queue.children))
    return [e.QueueRemoved(now_ms, name)]


def _not_empty(name: str, jobs: int, below: list[str]) -> Refusal:
    has, hints = [], []
    if below:
        shown = ", ".join(below[:5]) + (", …" if len(below) > 5 else "")
        has.append(f"the child {'queue' if len(below) == 1 else 'queues'} {shown}")
        hints.append(f"remove {below[0]} first")
    if jobs:
        has.append("1 job" if jobs == 1 else f"{jobs} jobs")
        hints.append("let its jobs end, or cancel them")
    return Refusal("queue_not_empty", f"queue {name} still has {' and '.join(has)}", "; ".join(hints))


def add_node(state: State, spec: NodeSpec, now_ms: int) -> Answer:
    """Add a node, or update its description. A changed description is refused while tasks run on the node."""
    known = state.nodes.get(spec.name)
    if not spec.name:
        return Refusal("bad_name", "a node needs a name", field="name")
    if known is not None and known.spec != spec and is_in_use(state, spec.name):
        return Refusal("node_in_use", f"node {spec.name} changed while gangs run on it", "drain it first")
    if len(spec.path) != len(state.settings.levels):
        return Refusal(
            "bad_path",
            f"node {spec.name} has {len(spec.path)} domains; the topology has {len(state.settings.levels)} levels",
            field="path",
        )
    if any(amount < 0 for _, amount in spec.amounts) or any(gpu.vram_mib <= 0 for gpu in spec.gpus):
        return Refusal("negative_amount", f"node {spec.name} has an invalid amount", field="amounts")
    return _gpu_of_another(state, spec) or [e.NodeAdded(now_ms, spec)]


def _gpu_of_another(state: State, spec: NodeSpec) -> Refusal | None:
    """Refuse a GPU that another node has. A GPU of a lost, empty node may have moved."""
    for slot, gpu in enumerate(spec.gpus):
        owner = state.gpu_owners.get(gpu.uuid, spec.name)
        if gpu.uuid and owner != spec.name and not (state.nodes[owner].lost and not is_in_use(state, owner)):
            return Refusal(
                "gpu_of_another_node",
                f"GPU {slot} of node {spec.name} has the UUID {gpu.uuid}, which node {owner} also has",
                f"if the card was moved: corral node remove {owner}",
                field="gpus",
            )
    return None


def remove_node(state: State, name: str, now_ms: int) -> Answer:
    if name not in state.nodes:
        return _no_node(name)
    if is_in_use(state, name):
        return Refusal("node_in_use", f"gangs run on node {name}", "drain it first")
    return [e.NodeRemoved(now_ms, name)]


def is_in_use(state: State, name: str) -> bool:
    """Whether a gang has a seat on the node, or claims one."""
    return bool(state.tenants[name]) or any(
        seat.node == name for gang in state.claimants.values() for seat in gang.claim
    )


_ITS_STATE = "its state: corral node"


def drain(state: State, name: str, now_ms: int) -> Answer:
    if name not in state.nodes:
        return _no_node(name)
    if state.nodes[name].drained:
        return Refusal("already_drained", f"node {name} is already drained or draining")
    return [e.NodeDrained(now_ms, name)]


def undrain(state: State, name: str, now_ms: int) -> Answer:
    if name not in state.nodes:
        return _no_node(name)
    if not state.nodes[name].drained:
        hint = f"it is cordoned; use: corral node uncordon {name}" if state.nodes[name].cordoned else _ITS_STATE
        return Refusal("not_drained", f"node {name} is not drained", hint)
    return [e.NodeUndrained(now_ms, name)]


def cordon(state: State, name: str, now_ms: int) -> Answer:
    """Start nothing new on a node; its gangs run to their ends."""
    if name not in state.nodes:
        return _no_node(name)
    if state.nodes[name].drained:
        return Refusal("already_drained", f"node {name} is already drained or draining, so nothing starts there")
    if state.nodes[name].cordoned:
        return Refusal("already_cordoned", f"node {name} is already cordoned")
    return [e.NodeDrained(now_ms, name, cordon=True)]


def uncordon(state: State, name: str, now_ms: int) -> Answer:
    if name not in state.nodes:
        return _no_node(name)
    if not state.nodes[name].cordoned:
        hint = f"it is drained; use: corral node undrain {name}" if state.nodes[name].drained else _ITS_STATE
        return Refusal("not_cordoned", f"node {name} is not cordoned", hint)
    return [e.NodeUndrained(now_ms, name)]


def _no_node(name: str) -> Refusal:
    return Refusal("no_such_node", f"there is no node {name!r}", "list them with: corral node")
