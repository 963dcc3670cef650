"""Applies events of gangs: queue position, seats, and what the queue is charged and metered.

Called by apply after the table in lifecycle has allowed the event. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from corral.core import events as e
from corral.core.cluster.resources import GPU_MILLI, amount_of
from corral.core.model import (
    OUTER,
    QUICK_MS,
    TERMINAL,
    Blocker,
    Cause,
    Eviction,
    Gang,
    GangState,
    Job,
    OutOfTurn,
    earlier,
)
from corral.core.prediction import bin_of, kinds_of_gang, pattern_of
from corral.core.queues.budget import Run
from corral.core.state import State, deadlines, seated

HEAD = 1 << 60  # subtracted from the rank of a gang that goes to the head of its queue


# ---- the backlog ---------------------------------------------------------------------------------------------------


def join_backlog(state: State, gang: Gang) -> None:
    state.backlog.add(gang)


def is_in_backlog(gang: Gang) -> bool:
    return gang.state is GangState.WAITING and not gang.blockers and not gang.claim


def leave_backlog(state: State, gang: Gang) -> bool:
    """Remove a gang from the backlog. Returns whether it was there."""
    was_in_backlog = is_in_backlog(gang)
    if was_in_backlog:
        state.backlog.remove(gang)
        state.reservations.pop(gang.id, None)
    return was_in_backlog


def unblock(state: State, gang: Gang, blocker: int) -> None:
    """Remove a blocker; a gang without blockers enters the backlog."""
    was_in_backlog = is_in_backlog(gang)
    gang.blockers &= ~blocker
    if not was_in_backlog and is_in_backlog(gang):
        state.backlog.add(gang)


def _awoke(state: State, gang: Gang, event: e.GangAwoke) -> None:
    if event.blocker & Blocker.ARRAY:
        job = state.jobs[gang.job]
        _unpark(job, gang)
        job.active += 1
        _note_if_array_has_room(state, job)
    unblock(state, gang, event.blocker)


def _unpark(job: Job, gang: Gang) -> None:
    """Usually it is the next one, which is last in the list."""
    if job.parked[-1] == gang.id:
        job.parked.pop()
    else:
        job.parked.remove(gang.id)


def _note_if_array_has_room(state: State, job: Job) -> None:
    if job.parked and job.active < job.array_slots:
        state.jobs_to_settle[job.id] = None
    else:
        state.jobs_to_settle.pop(job.id, None)


# ---- changes of one gang by users -----------------------------------------------------------------------------------


def _cancelled(state: State, gang: Gang, event: e.GangCancelled) -> None:
    gang.cancelled = True


def _held(state: State, gang: Gang, event: e.GangHeld) -> None:
    leave_backlog(state, gang)
    if gang.state is GangState.WAITING:
        _give_up_slot(state, gang)
    gang.blockers |= Blocker.GANG_HELD


def _give_up_slot(state: State, gang: Gang) -> None:
    """A held gang uses no slot of its array, so that others can run; it waits for none, either."""
    job = state.jobs[gang.job]
    if not job.has_slots:
        return
    if gang.blockers & Blocker.ARRAY:
        _unpark(job, gang)
        gang.blockers &= ~Blocker.ARRAY
    else:
        job.active -= 1
    _note_if_array_has_room(state, job)


def _released(state: State, gang: Gang, event: e.GangReleased) -> None:
    release_gang(state, gang)


def release_gang(state: State, gang: Gang) -> None:
    """Release a gang that was held by itself. Without a free slot in its array it is the next to get one."""
    job = state.jobs[gang.job]
    if job.has_slots and gang.state is GangState.WAITING:
        if job.active < job.array_slots:
            job.active += 1
        else:
            gang.blockers |= Blocker.ARRAY
            job.parked.append(gang.id)
    unblock(state, gang, Blocker.GANG_HELD)


def _priority_changed(state: State, gang: Gang, event: e.GangPriorityChanged) -> None:
    set_priority(state, gang, event.priority)


def set_priority(state: State, gang: Gang, priority: int) -> None:
    was_in_backlog = leave_backlog(state, gang)
    if gang.holds_seats:
        drop_from_held(state, gang)
    gang.priority = priority
    if gang.holds_seats:
        state.held_by.setdefault((gang.queue, gang.priority), {})[gang.id] = gang
        count_held(state, gang, 1)
    if was_in_backlog:
        state.backlog.add(gang)


# ---- seats ---------------------------------------------------------------------------------------------------------


def _placed(state: State, gang: Gang, event: e.GangPlaced) -> None:
    assert event.attempt == gang.attempt + 1, "attempts increase by one"
    if gang.claim:
        _unclaim(state, gang)
    else:
        leave_backlog(state, gang)
        gang.turn = state.version
    assert not gang.blockers, "a blocked gang was placed"
    gang.in_line_ms += max(0, event.at_ms - gang.waiting_since_ms)
    _sit(state, gang, event)
    _set_charge(state, gang, gang.metered)
    _note_if_out_of_turn(state, gang, event)
    expected = gang.profile.expected_ms or state.settings.default_expected_ms
    gang.committed_gpu_ms = gang.gpu_milli * expected // 1000
    state.queues.commit_budget(gang.queue, gang.committed_gpu_ms)


def _note_if_out_of_turn(state: State, gang: Gang, event: e.GangPlaced | e.GangClaimed) -> None:
    """Record that a gang was served out of turn; expired entries are dropped."""
    if event.out_of_turn_until_ms:
        over = [key for key, known in state.out_of_turn.items() if not known.gang and known.until_ms <= event.at_ms]
        for key in over:
            del state.out_of_turn[key]
        known = OutOfTurn(gang.id, event.at_ms, event.out_of_turn_until_ms)
        state.out_of_turn[gang.priority, gang.demand.task] = known


def _note_that_it_left(state: State, gang: Gang, now_ms: int) -> None:
    """A gang served out of turn has left: others wait in proportion to how long it really ran."""
    for key, known in state.out_of_turn.items():
        if known.gang == gang.id:
            expected = gang.profile.expected_ms or state.settings.default_expected_ms
            state.out_of_turn[key] = OutOfTurn("", known.since_ms, known.until(now_ms, expected))


def _repaired(state: State, gang: Gang, event: e.GangRepaired) -> None:
    assert event.attempt == gang.attempt + 1, "attempts increase by one"
    _account_for_run(state, gang, event.at_ms, event.by_window)
    gang.done_ms += _saved_part(gang)
    if not gang.saved_ms and (not gang.started_ms or event.at_ms - gang.started_ms < QUICK_MS):
        gang.quick_failures += 1
    _rise(state, gang, event.at_ms)
    _sit(state, gang, event)
    _set_charge(state, gang, gang.metered)


def _sit(state: State, gang: Gang, event: e.GangPlaced | e.GangRepaired) -> None:
    state.broken.pop(gang.id, None)
    gang.state, gang.attempt = GangState.STARTING, event.attempt
    gang.blamed, gang.blamed_node = None, ""
    gang.first_failure = None
    gang.slow_node = ""
    gang.seats, gang.spares = event.seats, event.spares
    gang.started = gang.ended = gang.lost = gang.exit_code = gang.saved_ms = gang.started_ms = 0
    gang.placed_ms = event.at_ms
    state.holders[gang.id] = gang
    if gang.demand.is_elastic:
        state.elastic[gang.id] = gang
    state.held_by.setdefault((gang.queue, gang.priority), {})[gang.id] = gang
    state.capacity.take_all(seated(state.topology, gang.all_seats), gang.amounts)
    for seat in gang.all_seats:
        state.tenants[seat.node][gang.id] = None
    state.touch(gang.all_seats)
    gang.metered = state.charge_for(gang.demand.task, gang.all_seats)
    gang.gpu_milli = amount_of(gang.metered, GPU_MILLI) or 0
    count_held(state, gang, 1)
    state.queues.meter(gang.queue, gang.user, gang.metered, 1, event.at_ms)
    for when in deadlines(state, gang):
        state.set_timer(when, gang)


def _rise(state: State, gang: Gang, now_ms: int) -> None:
    """Release all seats."""
    state.touch(gang.all_seats)
    seats = seated(state.topology, gang.all_seats)
    state.capacity.give_back_all(seats, gang.amounts)
    for n, seat in seats:
        if gang.state is GangState.STOPPING:
            state.capacity.pledge(n, gang.amounts, 1)
        state.tenants[seat.node].pop(gang.id, None)
    state.queues.meter(gang.queue, gang.user, gang.metered, -1, now_ms)
    del state.holders[gang.id]
    drop_from_held(state, gang)
    state.broken.pop(gang.id, None)
    state.stopping.pop(gang.id, None)
    state.elastic.pop(gang.id, None)
    state.gangs_to_settle.pop(gang.id, None)
    gang.metered = gang.seats = gang.spares = ()
    gang.gpu_milli = 0


def count_held(state: State, gang: Gang, sign: int) -> None:
    """Count the GPUs of a gang among those that gangs of its queue and priority hold."""
    key = (gang.queue, gang.priority)
    saving, held = state.held_milli.get(key, (0, 0))
    held += sign * gang.gpu_milli
    saving += sign * gang.gpu_milli if state.jobs[gang.job].spec.saves else 0
    if held:
        state.held_milli[key] = saving, held
    else:
        state.held_milli.pop(key, None)


def drop_from_held(state: State, gang: Gang) -> None:
    key = (gang.queue, gang.priority)
    count_held(state, gang, -1)
    del state.held_by[key][gang.id]
    if not state.held_by[key]:
        del state.held_by[key]


def _claimed(state: State, gang: Gang, event: e.GangClaimed) -> None:
    leave_backlog(state, gang)
    gang.claim, gang.turn = event.seats, state.version
    state.touch(event.seats)
    state.claimants[gang.id] = gang
    for n, seat in seated(state.topology, event.seats):
        state.capacity.claim(n, seat.gpus, gang.amounts)
    _set_charge(state, gang, state.charge_for(gang.demand.task, event.seats))
    _note_if_out_of_turn(state, gang, event)


def _claim_dropped(state: State, gang: Gang, event: e.ClaimDropped) -> None:
    _unclaim(state, gang)
    _set_charge(state, gang, ())
    _note_that_it_left(state, gang, event.at_ms)
    if is_in_backlog(gang):
        state.backlog.add(gang)


def _unclaim(state: State, gang: Gang) -> None:
    state.touch(gang.claim)
    for n, seat in seated(state.topology, gang.claim):
        state.capacity.unclaim(n, seat.gpus, gang.amounts)
    gang.claim = ()
    del state.claimants[gang.id]


def _set_charge(state: State, gang: Gang, amounts: tuple[tuple[str, int], ...]) -> None:
    state.queues.charge(gang.queue, gang.user, gang.charged, -1)
    state.queues.charge(gang.queue, gang.user, amounts, 1)
    gang.charged = amounts


# ---- running -------------------------------------------------------------------------------------------------------


def _tasks_started(state: State, gang: Gang, event: e.TasksStarted) -> None:
    gang.started |= event.tasks


def _started(state: State, gang: Gang, event: e.GangStarted) -> None:
    gang.state = GangState.RUNNING
    gang.started = gang.everyone
    gang.started_ms = event.at_ms
    state.touch(gang.all_seats)
    for when in deadlines(state, gang):
        state.set_timer(when, gang)


def _checkpointed(state: State, gang: Gang, event: e.CheckpointCommitted) -> None:
    gang.saved_ms, gang.saved_step = event.at_ms, event.step
    gang.saved_path = event.path
    if event.save_ms:
        gang.save_ms = max(event.save_ms, gang.save_ms * 3 // 4)  # an unusually long one is forgotten slowly
    gang.quick_failures = 0


def _slowed(state: State, gang: Gang, event: e.GangSlowed) -> None:
    gang.slow_node = event.node if event.percent > 100 else ""


def _tasks_ended(state: State, gang: Gang, event: e.TasksEnded) -> None:
    gang.ended |= event.tasks
    gang.exit_code = gang.exit_code or event.exit_code
    eviction = gang.eviction
    if eviction is None or (eviction.cause is Cause.FAILURE and eviction.failure not in OUTER):
        # otherwise it fails because it is stopped, or because another task was lost
        gang.first_failure = earlier(gang.first_failure, event.first_failure)
    _note_if_spent(state, gang, event.at_ms)


def _tasks_lost(state: State, gang: Gang, event: e.TasksLost) -> None:
    gang.lost |= event.tasks
    gang.ended |= event.tasks
    if gang.state is GangState.STOPPING and gang.blamed is None:
        gang.blamed, gang.blamed_node = event.failure, event.node
    if gang.state is not GangState.STOPPING:
        gang.state = GangState.BROKEN
        state.broken[gang.id] = gang
    _note_if_spent(state, gang, event.at_ms)


def _note_if_spent(state: State, gang: Gang, now_ms: int) -> None:
    if gang.state is GangState.STOPPING and gang.ended == gang.everyone and gang.eviction is not None:
        if gang.blamed is None and gang.eviction.judge_ms > now_ms:
            state.set_timer(gang.eviction.judge_ms, gang)
        else:
            state.gangs_to_settle[gang.id] = gang


def _evicted(state: State, gang: Gang, event: e.GangEvicted) -> None:
    gang.eviction = Eviction(
        event.cause,
        event.at_ms,
        event.deadline_ms,
        event.beneficiary,
        event.failure,
        event.exit_code,
        event.node,
        event.judge_ms,
        event.is_charged,
    )
    gang.state, gang.grace_over = GangState.STOPPING, False
    state.stopping[gang.id] = gang
    state.touch(gang.all_seats)
    state.broken.pop(gang.id, None)
    for n, _ in seated(state.topology, gang.all_seats):
        state.capacity.pledge(n, gang.amounts, -1)
    if not event.is_charged:
        _set_charge(state, gang, ())
    state.set_timer(event.deadline_ms, gang)
    _note_if_spent(state, gang, event.at_ms)


def _grace_ended(state: State, gang: Gang, event: e.GraceEnded) -> None:
    gang.grace_over = True


# ---- the end -------------------------------------------------------------------------------------------------------


def _stopped(state: State, gang: Gang, event: e.GangStopped) -> None:
    _account_for_run(state, gang, event.at_ms, event.by_window)
    _account_for_loss(state, gang, event.lost_gpu_ms)
    state.queues.commit_budget(gang.queue, -gang.committed_gpu_ms)
    gang.committed_gpu_ms = 0
    _rise(state, gang, event.at_ms)
    if not gang.claim:
        _set_charge(state, gang, ())
    gang.state, gang.blockers = GangState.WAITING, gang.blockers | Blocker.STOPPED
    gang.ran_ms = gang.done_ms + (event.at_ms - gang.started_ms if gang.started_ms else 0)
    gang.done_ms = event.done_ms
    gang.eviction = None
    gang.grace_over = False
    gang.waiting_since_ms = event.at_ms


def _account_for_run(state: State, gang: Gang, now_ms: int, by_window: bool) -> None:
    gpu_ms = gang.gpu_milli * (now_ms - gang.placed_ms) // 1000
    gang.served_gpu_ms += gpu_ms
    state.queues.spend(gang.queue, Run(gang.placed_ms, now_ms, gang.gpu_milli), by_window)
    if state.out_of_turn:
        _note_that_it_left(state, gang, now_ms)


def _account_for_loss(state: State, gang: Gang, lost_gpu_ms: int) -> None:
    """Account work lost to a preemption to the queue of the gang that benefited."""
    if not lost_gpu_ms or gang.eviction is None or not gang.eviction.beneficiary:
        return
    beneficiary = state.gangs.get(gang.eviction.beneficiary)
    if beneficiary is not None and beneficiary.id != gang.id:
        state.queues.queues[gang.queue].loss_suffered_gpu_ms += lost_gpu_ms
        if beneficiary.queue in state.queues.queues:  # it may have been removed
            state.queues.queues[beneficiary.queue].loss_caused_gpu_ms += lost_gpu_ms


def _saved_part(gang: Gang) -> int:
    """The running time of the current attempt up to its last checkpoint."""
    return max(0, gang.saved_ms - gang.started_ms) if gang.started_ms and gang.saved_ms else 0


def _requeued(state: State, gang: Gang, event: e.GangRequeued) -> None:
    gang.blockers &= ~Blocker.STOPPED
    gang.ran_ms = 0
    if event.counted is not None:
        gang.retries[event.counted] = gang.retries.get(event.counted, 0) + 1
    gang.quick_failures = gang.quick_failures + 1 if event.is_quick else gang.quick_failures
    if event.profile is not None:
        gang.profile = event.profile
    if gang.done_ms:
        gang.profile = replace(gang.profile, done=bin_of(gang.done_ms))
    if event.at_head and gang.rank > 0:
        gang.rank -= HEAD
    elif event.at_end:
        gang.rank, state.next_rank = state.next_rank, state.next_rank + 1
    gang.not_before_ms = event.not_before_ms
    if event.not_before_ms > event.at_ms:
        gang.blockers |= Blocker.BACKOFF
        state.set_timer(event.not_before_ms, gang)
    if gang.blockers & Blocker.GANG_HELD:  # held while it ran
        _give_up_slot(state, gang)
    if is_in_backlog(gang):
        state.backlog.add(gang)
    deadline = state.jobs[gang.job].spec.deadline_ms
    if deadline is not None:
        state.set_timer(deadline - (gang.profile.expected_ms or 0), gang)


def _finished(state: State, gang: Gang, event: e.GangFinished) -> None:
    assert event.state in TERMINAL
    leave_backlog(state, gang)
    if gang.claim:
        _unclaim(state, gang)
        _set_charge(state, gang, ())
    is_parked = bool(gang.blockers & Blocker.ARRAY)
    has_slot = not is_parked and (not gang.blockers & Blocker.GANG_HELD or bool(gang.blockers & Blocker.STOPPED))
    gang.state, gang.blockers = event.state, 0
    job = state.jobs[gang.job]
    if gang.ran_ms:
        state.predictions.add(kinds_of_gang(gang, job.spec, pattern_of(job.spec.name)), gang.ran_ms)
    left = job.elements_left
    job.unfinished -= 1
    state.queues.count_elements(gang.queue, job.user, job.elements_left - left)
    job.failed += event.state is not GangState.SUCCEEDED
    if is_parked:
        _unpark(job, gang)
    elif has_slot:
        job.active -= 1
    if job.unfinished:
        _note_if_array_has_room(state, job)
        return
    state.jobs_to_settle[job.id] = None
    queue = state.queues.queues[gang.queue]
    queue.jobs -= 1
    queue.user_jobs[job.user] -= 1
    if not queue.user_jobs[job.user]:
        del queue.user_jobs[job.user]
    if job.spec.name:
        namesakes = state.namesakes[job.user, job.spec.name]
        del namesakes[job.id]
        if not namesakes:
            del state.namesakes[job.user, job.spec.name]


FOLD_GANGS: dict[type, Callable[[State, Gang, Any], None]] = {
    e.GangAwoke: _awoke,
    e.GangPlaced: _placed,
    e.TasksStarted: _tasks_started,
    e.GangStarted: _started,
    e.CheckpointCommitted: _checkpointed,
    e.GangSlowed: _slowed,
    e.TasksEnded: _tasks_ended,
    e.TasksLost: _tasks_lost,
    e.GangEvicted: _evicted,
    e.GraceEnded: _grace_ended,
    e.GangClaimed: _claimed,
    e.ClaimDropped: _claim_dropped,
    e.GangRepaired: _repaired,
    e.GangStopped: _stopped,
    e.GangRequeued: _requeued,
    e.GangFinished: _finished,
    e.GangCancelled: _cancelled,
    e.GangHeld: _held,
    e.GangReleased: _released,
    e.GangPriorityChanged: _priority_changed,
}
