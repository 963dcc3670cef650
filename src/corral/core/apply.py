"""Applies events to the state: nodes, queues and jobs here, gangs in apply_gangs. The only code that changes it.

Nothing is decided here. An event that does not fit the state is a bug of its producer and fails an assertion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.core import events as e
from corral.core.apply_gangs import (
    FOLD_GANGS,
    join_backlog,
    leave_backlog,
    release_gang,
    set_priority,
    unblock,
)
from corral.core.cluster.resources import Demand, least_gpu_milli
from corral.core.gang_id import gang_id
from corral.core.lifecycle import may_follow
from corral.core.model import Blocker, Gang, Health, Job, JobSpec, Node, Profile
from corral.core.prediction import kinds_of, pattern_of
from corral.core.state import Namesakes, State, deadlines, healthy_gpus, is_leaving, is_open, node_total


def apply(state: State, event: e.Event) -> None:
    """Change the state by one event."""
    state.version += 1
    state.now_ms = max(state.now_ms, event.at_ms)
    kind = type(event)
    fold = FOLD_GANGS.get(kind)
    if fold is None:
        FOLDS[kind](state, event)
        state.drop_stale_timers()
    else:
        gang = state.gangs[event.gang]  # type: ignore[union-attr]
        state.refresh()
        assert may_follow(gang.state, kind), f"{kind.__name__} in state {gang.state} of {gang.id}"
        fold(state, gang, event)
        if state.timers and state.timers[0][1] == gang.id:
            state.drop_stale_timers()


def _founded(state: State, event: e.Founded) -> None:
    assert state.version == 1, "Founded must be the first event of a journal"
    state.settings = event.settings
    state.queues.half_life_ms = event.settings.half_life_ms
    state.queues.entry_charge_ms = event.settings.entry_charge_ms


def _node_added(state: State, event: e.NodeAdded) -> None:
    known = state.nodes.get(event.spec.name)
    if known is None:
        state.nodes[event.spec.name] = Node(event.spec)
        state.tenants[event.spec.name] = {}
    else:
        _count(state, known, -1)
        _disown(state, known)
        known.spec = event.spec
    _count(state, state.nodes[event.spec.name], 1)
    for gpu in event.spec.gpus:
        state.gpu_owners[gpu.uuid] = event.spec.name
    state.nodes_changed()


def _disown(state: State, node: Node) -> None:
    for gpu in node.spec.gpus:
        if state.gpu_owners.get(gpu.uuid) == node.spec.name:
            del state.gpu_owners[gpu.uuid]


def _node_removed(state: State, event: e.NodeRemoved) -> None:
    node = state.nodes.pop(event.node)
    _count(state, node, -1)
    _disown(state, node)
    del state.tenants[event.node]
    state.draining.pop(event.node, None)
    state.ending.pop(event.node, None)
    state.nodes_changed()


def _node_lost(state: State, event: e.NodeLost) -> None:
    _count(state, state.nodes[event.node], -1)
    state.nodes[event.node].lost = True
    _node_refreshed(state, event.node)


def _node_returned(state: State, event: e.NodeReturned) -> None:
    state.nodes[event.node].lost = False
    _count(state, state.nodes[event.node], 1)
    _node_refreshed(state, event.node)


def _count(state: State, node: Node, sign: int) -> None:
    """Add a node to the total of the cluster, or subtract it; a lost node does not count."""
    if not node.lost:
        total = state.queues.total
        for name, amount in node_total(node.spec).items():
            total[name] = total.get(name, 0) + sign * amount


def _node_health(state: State, event: e.NodeHealthChanged) -> None:
    node = state.nodes[event.node]
    node.health, node.why = event.health, event.why
    _node_refreshed(state, event.node)


def _gpu_health(state: State, event: e.GpuHealthChanged) -> None:
    node = state.nodes[event.node]
    node.gpu_health[event.gpu], node.gpu_why[event.gpu] = event.health, event.why
    _node_refreshed(state, event.node)


def _node_drained(state: State, event: e.NodeDrained | e.NodeUndrained) -> None:
    node = state.nodes[event.node]
    node.cordoned = isinstance(event, e.NodeDrained) and event.cordon
    node.drained = isinstance(event, e.NodeDrained) and not event.cordon
    _node_refreshed(state, event.node)


def _node_end(state: State, event: e.NodeEndSet) -> None:
    state.nodes[event.node].until_ms = event.until_ms
    if event.until_ms is None:
        state.ending.pop(event.node, None)
    else:
        state.ending[event.node] = event.until_ms
    state.changes.append(event.node)
    for name in state.tenants[event.node]:
        gang = state.gangs[name]
        for when in deadlines(state, gang):
            state.set_timer(when, gang)


def _node_refreshed(state: State, name: str) -> None:
    node = state.nodes[name]
    state.refresh()
    state.capacity.set_up(state.topology.number[name], is_open(node), healthy_gpus(node))
    state.changes.append(name)
    if is_leaving(node) or Health.DRAINING in node.gpu_health.values():
        state.draining[name] = None
    else:
        state.draining.pop(name, None)


def _queue_set(state: State, event: e.QueueSet) -> None:
    state.queues.put(event.spec)


def _queue_removed(state: State, event: e.QueueRemoved) -> None:
    state.queues.drop(event.queue)


def number_of(job: str) -> int:
    """The number of a job; 0 if its id is not a number."""
    return int(job) if len(job) < 16 and job.isdecimal() and job.isascii() else 0


def _job_submitted(state: State, event: e.JobSubmitted) -> None:
    spec = event.spec
    job = Job(event.job, spec, event.user, event.at_ms, spec.priority, held=spec.held, account=event.account)
    state.jobs[job.id] = job
    state.next_job = max(state.next_job + 1, number_of(job.id) + 1)
    blockers = _blockers_at_birth(state, job, event.at_ms)
    for index in spec.array or (None,):
        for gang_spec in spec.gangs:
            _make_gang(state, job, gang_id(job.id, gang_spec.role, index), gang_spec.demand, blockers)
    job.unfinished = len(job.gangs)
    if spec.array and spec.array_parallel is not None:
        _park_excess(state, job)
    queue = state.queues.queues[spec.queue]
    queue.jobs += 1
    queue.user_jobs[event.user] = queue.user_jobs.get(event.user, 0) + 1
    state.queues.count_elements(spec.queue, event.user, job.elements_left)
    if spec.name:
        state.namesakes.setdefault((event.user, spec.name), Namesakes())[job.id] = None
    for name in job.gangs:
        gang = state.gangs[name]
        if not gang.blockers:
            join_backlog(state, gang)


def _blockers_at_birth(state: State, job: Job, now_ms: int) -> int:
    spec, blockers = job.spec, 0  # plain integers: flags are slow, and this runs for every submission and at replay
    if spec.held:
        blockers |= _HELD
    if spec.begin_ms is not None and spec.begin_ms > now_ms:
        blockers |= _BEGIN
    for dependency in spec.after:
        if not state.jobs[dependency.job].is_over:
            state.dependents.setdefault(dependency.job, []).append((job.id, dependency.after))
            state.awaited[job.id] = state.awaited.get(job.id, 0) + 1
            blockers |= _DEPENDENCY
    if spec.singleton and state.namesakes.get((job.user, spec.name)):
        blockers |= _DEPENDENCY
    return blockers


_HELD = int(Blocker.HELD)
_BEGIN = int(Blocker.BEGIN)
_DEPENDENCY = int(Blocker.DEPENDENCY)


def _make_gang(state: State, job: Job, name: str, demand: Any, blockers: int) -> None:
    spec: JobSpec = job.spec
    gang = Gang(
        id=name,
        job=job.id,
        queue=spec.queue,
        user=job.user,
        priority=spec.priority,
        rank=state.next_rank,
        profile=Profile(demand, spec.expected_ms, pattern=_known_pattern(state, job, demand)),
        submitted_ms=job.submitted_ms,
        waiting_since_ms=job.submitted_ms,
        blockers=blockers,
        overrun_ms=spec.overrun_ms,
    )
    state.next_rank += 1
    state.gangs[name] = gang
    job.gangs.append(name)
    if blockers & _BEGIN:
        state.set_timer(spec.begin_ms or 0, gang)
    if spec.deadline_ms is not None:
        state.set_timer(spec.deadline_ms - (spec.expected_ms or 0), gang)


def _known_pattern(state: State, job: Job, demand: Demand) -> str:
    """The name of a job without its numbers, if any such job of the user has ended: otherwise it says nothing, and
    gangs that differ only in their names have one shape."""
    pattern = pattern_of(job.spec.name)
    if not pattern:
        return ""
    kinds = kinds_of(job.spec.queue, job.user, least_gpu_milli(demand), job.spec.time_limit_ms, pattern)
    return pattern if state.predictions.is_known(kinds[-1]) else ""


def _park_excess(state: State, job: Job) -> None:
    """Array elements beyond array_parallel are not queued until an earlier one has ended."""
    job.active = min(job.array_slots, len(job.gangs))
    job.parked = job.gangs[job.active :][::-1]
    for name in job.parked:
        state.gangs[name].blockers |= Blocker.ARRAY


def _job_cancelled(state: State, event: e.JobCancelled) -> None:
    state.jobs[event.job].cancelled = True


def _unfinished(state: State, job: Job) -> list[Gang]:
    return [gang for name in job.gangs if not (gang := state.gangs[name]).is_over]


def _job_held(state: State, event: e.JobHeld) -> None:
    job = state.jobs[event.job]
    job.held, job.held_why = True, event.why
    for gang in _unfinished(state, job):
        leave_backlog(state, gang)
        gang.blockers |= Blocker.HELD


def _job_released(state: State, event: e.JobReleased) -> None:
    job = state.jobs[event.job]
    job.held, job.held_why = False, ""
    for gang in _unfinished(state, job):
        unblock(state, gang, Blocker.HELD)
        if gang.blockers & Blocker.GANG_HELD:
            release_gang(state, gang)


def _job_suspended(state: State, event: e.JobSuspended) -> None:
    job = state.jobs[event.job]
    job.suspended, job.cancel_ms = event.why, event.cancel_ms
    state.suspended[job.id] = None
    for gang in _unfinished(state, job):
        leave_backlog(state, gang)
        gang.blockers |= Blocker.SUSPENDED


def _job_resumed(state: State, event: e.JobResumed) -> None:
    job = state.jobs[event.job]
    job.suspended, job.cancel_ms = None, None
    if event.account is not None:
        job.account = event.account
    state.suspended.pop(job.id, None)
    for gang in _unfinished(state, job):
        unblock(state, gang, Blocker.SUSPENDED)


def _job_ended(state: State, event: e.JobEnded) -> None:
    del state.jobs_to_settle[event.job]
    state.suspended.pop(event.job, None)
    for dependent, _ in state.dependents.pop(event.job, ()):
        state.awaited[dependent] -= 1
        if not state.awaited[dependent]:
            del state.awaited[dependent]


def _job_forgotten(state: State, event: e.JobForgotten) -> None:
    job = state.jobs.pop(event.job)
    assert job.is_over, f"{job.id} is not over"
    for name in job.gangs:
        del state.gangs[name]


def _priority_changed(state: State, event: e.PriorityChanged) -> None:
    job = state.jobs[event.job]
    job.priority = event.priority
    for name in job.gangs:
        set_priority(state, state.gangs[name], event.priority)


def _starts_promised(state: State, event: e.StartsPromised) -> None:
    for name in event.withdrawn:
        del state.reservations[name]
    for reservation in event.promises:
        state.reservations[reservation.gang] = reservation


FOLDS: dict[type, Callable[[State, Any], None]] = {
    e.Founded: _founded,
    e.NodeAdded: _node_added,
    e.NodeRemoved: _node_removed,
    e.NodeLost: _node_lost,
    e.NodeReturned: _node_returned,
    e.NodeHealthChanged: _node_health,
    e.GpuHealthChanged: _gpu_health,
    e.NodeDrained: _node_drained,
    e.NodeUndrained: _node_drained,
    e.NodeEndSet: _node_end,
    e.QueueSet: _queue_set,
    e.QueueRemoved: _queue_removed,
    e.JobSubmitted: _job_submitted,
    e.JobCancelled: _job_cancelled,
    e.JobHeld: _job_held,
    e.JobReleased: _job_released,
    e.JobSuspended: _job_suspended,
    e.JobResumed: _job_resumed,
    e.JobEnded: _job_ended,
    e.JobForgotten: _job_forgotten,
    e.PriorityChanged: _priority_changed,
    e.StartsPromised: _starts_promised,
}
