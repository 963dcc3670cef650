"""The engine that both drivers use: what a fact means, and what follows when events are applied.

``react`` turns a fact into events. ``apply_all`` applies events and all that follows from them, and says which effects
are due then. Where events are written, and who executes effects, is the driver's business: the live server and the
simulator differ only there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from msgspec import Struct

from corral.core import events as e
from corral.core import facts as f
from corral.core.apply import apply
from corral.core.apply_gangs import FOLD_GANGS
from corral.core.cluster.slots import slots
from corral.core.effects import Effect, effects
from corral.core.intake.commands import evict
from corral.core.intake.never_fits import why_never
from corral.core.model import (
    END_MARGIN_MS,
    OUTER,
    Blocker,
    Cause,
    FailureClass,
    Gang,
    GangState,
    Health,
)
from corral.core.plan import Plan
from corral.core.settle import follow_up, settle
from corral.core.snapshot import Snapshot
from corral.core.state import State, leave_ms

#: What a driver asks for a plan. The live server asks one in another process.
Policy = Callable[[Snapshot], Plan]


class Applied(Struct, frozen=True, gc=False):
    """Events that were applied together, and the effects that are due now for the gangs they concern."""

    events: list[e.Event]
    effects: list[Effect]


def apply_all(state: State, events: Sequence[e.Event], now_ms: int) -> Applied:
    """Apply events and all that follows from them."""
    applied: list[e.Event] = []
    touched: dict[str, None] = {}
    while events:
        for event in events:
            apply(state, event)
            if type(event) in FOLD_GANGS:
                touched[event.gang] = None  # type: ignore[union-attr]
        applied += events
        events = follow_up(state, now_ms) if state.gangs_to_settle or state.jobs_to_settle else ()
    return Applied(applied, effects(state, touched) if touched else [])


def react(state: State, fact: f.Fact, now_ms: int) -> list[e.Event]:
    """The events of a fact. A fact that is old, repeated or about something unknown has none."""
    match fact:
        case f.Ticked():
            known = state.gangs.get(fact.gang)
            due = ([] if known is None else [known]) if fact.gang else state.due(now_ms)
            return [event for gang in due for event in _due(state, gang, now_ms)]
        case f.TasksUp():
            return _tasks_up(state, fact, now_ms)
        case f.TasksDown():
            return _tasks_down(state, fact, now_ms)
        case f.Saved():
            return _saved(state, fact, now_ms)
        case f.Slowed():
            return _slowed(state, fact, now_ms)
        case f.NodeGone():
            return _node_gone(state, fact.node, now_ms)
        case f.NodeBack():
            return _node_back(state, fact.node, now_ms)
        case f.NodeObserved():
            return _node_observed(state, fact, now_ms)
        case f.NodeEnds():
            return _node_ends(state, fact, now_ms)
        case f.GpuObserved():
            return _gpu_observed(state, fact, now_ms)
        case _:
            assert_never(fact)


def _current(state: State, name: str, attempt: int) -> Gang | None:
    """The gang, if this is its current attempt."""
    gang = state.gangs.get(name)
    return gang if gang is not None and gang.attempt == attempt and gang.holds_seats else None


def _tasks_up(state: State, fact: f.TasksUp, now_ms: int) -> list[e.Event]:
    gang = _current(state, fact.gang, fact.attempt)
    if gang is None or gang.state is not GangState.STARTING:
        return []
    news = fact.tasks & gang.everyone & ~gang.started & ~gang.ended
    if not news:
        return []
    if gang.started | gang.ended | news == gang.everyone:
        return [e.GangStarted(now_ms, gang.id, gang.attempt)]
    return [e.TasksStarted(now_ms, gang.id, gang.attempt, news)]


def _tasks_down(state: State, fact: f.TasksDown, now_ms: int) -> list[e.Event]:
    gang = _current(state, fact.gang, fact.attempt)
    news = 0 if gang is None else fact.tasks & gang.everyone & ~gang.ended
    if gang is None or not news:
        return []
    is_last = gang.ended | news == gang.everyone
    spec = state.jobs[gang.job].spec
    failed = fact.failure is not None or fact.exit_code not in (0, spec.requeue_exit)
    first = fact.first_failure if failed else None
    ended = e.TasksEnded(now_ms, gang.id, gang.attempt, news, fact.exit_code, first)
    if gang.state is GangState.BROKEN:
        return [ended]
    if gang.state is GangState.STOPPING:
        return _down_while_leaving(gang, fact, news, ended, now_ms) or settle(
            state, gang, now_ms, fact.exit_code, fact.failure, fact.node, first
        )
    if fact.failure is FailureClass.NODE_LOST:
        return [e.TasksLost(now_ms, gang.id, gang.attempt, news, fact.node, fact.failure)]
    if not failed and not is_last:
        all_began = gang.state is GangState.STARTING and gang.started | gang.ended | news == gang.everyone
        return [ended, e.GangStarted(now_ms, gang.id, gang.attempt)] if all_began else [ended]
    judge_ms = _judge_ms(state, gang, fact, now_ms) if failed else 0
    if is_last and not judge_ms:
        return settle(state, gang, now_ms, fact.exit_code, fact.failure, fact.node, first)
    evicted = e.GangEvicted(
        now_ms,
        gang.id,
        gang.attempt,
        Cause.FAILURE,
        now_ms + spec.grace_ms,
        failure=fact.failure or FailureClass.USER_ERROR,
        exit_code=fact.exit_code,
        node=fact.node,
        judge_ms=judge_ms,
    )
    return [evicted, ended] if is_last else [ended, evicted]


def _down_while_leaving(gang: Gang, fact: f.TasksDown, news: int, ended: e.TasksEnded, now_ms: int) -> list[e.Event]:
    """Events while the gang is stopping; none if this was the last task and there is nothing to wait for. The loss of a
    task explains why others failed shortly before, and is recorded."""
    assert gang.eviction is not None
    if gang.eviction.cause is Cause.FAILURE and fact.failure in OUTER and gang.blamed is None:
        return [e.TasksLost(now_ms, gang.id, gang.attempt, news, fact.node, fact.failure)]
    if gang.ended | news != gang.everyone or (gang.eviction.judge_ms > now_ms and gang.blamed is None):
        return [ended]
    return []


def _judge_ms(state: State, gang: Gang, fact: f.TasksDown, now_ms: int) -> int:
    """When to decide the cause of a failure. A plain failure on one of several nodes may be the consequence of losing
    another node, which is known one lease later. 0: there is nothing to wait for."""
    is_plain = fact.failure in (None, FailureClass.USER_ERROR, FailureClass.NETWORK)
    is_alone = len({seat.node for seat in gang.seats}) == 1
    return 0 if is_alone or not is_plain else now_ms + (fact.judge_ms or state.settings.judge_ms)


def _saved(state: State, fact: f.Saved, now_ms: int) -> list[e.Event]:
    gang = _current(state, fact.gang, fact.attempt)
    if gang is None or gang.state is GangState.STARTING or not gang.started_ms or fact.step <= gang.saved_step:
        return []
    saved = e.CheckpointCommitted(now_ms, gang.id, gang.attempt, fact.step, fact.path, fact.save_ms, fact.stall_ms)
    return [saved, *_leave_slow_node(state, gang, now_ms)]


def _leave_slow_node(state: State, gang: Gang, now_ms: int) -> list[e.Event]:
    """A gang that wants to leave slow nodes does so when it has saved, if it can continue elsewhere at once."""
    spec = state.jobs[gang.job].spec
    if not (spec.leaves_slow_nodes and gang.slow_node and gang.state is GangState.RUNNING):
        return []
    there = sum(1 for seat in gang.seats if seat.node == gang.slow_node)
    avoid = (*gang.profile.avoid, gang.slow_node)
    spares = sum(1 for seat in gang.spares if seat.node != gang.slow_node)
    if sum(slots(state.capacity, gang.demand, avoid)) + spares < there:
        return []
    if why_never(state, gang.demand, avoid) is not None:
        return []
    deadline_ms = now_ms + spec.grace_ms
    return [e.GangEvicted(now_ms, gang.id, gang.attempt, Cause.MOVE, deadline_ms, node=gang.slow_node)]


def _slowed(state: State, fact: f.Slowed, now_ms: int) -> list[e.Event]:
    gang = _current(state, fact.gang, fact.attempt)
    if gang is None or gang.state is not GangState.RUNNING:
        return []
    if fact.percent <= 100 and not gang.slow_node:
        return []
    if fact.percent > 100 and all(seat.node != fact.node for seat in gang.seats):
        return []
    return [e.GangSlowed(now_ms, gang.id, gang.attempt, fact.node, max(fact.percent, 100))]


def _node_gone(state: State, name: str, now_ms: int) -> list[e.Event]:
    node = state.nodes.get(name)
    if node is None or node.lost:
        return []
    found: list[e.Event] = [e.NodeLost(now_ms, name)]
    for gang_id in state.tenants[name]:
        gang = state.gangs[gang_id]
        there = sum(1 << task for task, seat in enumerate(gang.seats) if seat.node == name)
        here = there & ~gang.ended
        if not here:
            if there and _awaits_judgement(gang):
                found += settle(state, gang, now_ms, 0, FailureClass.NODE_LOST, name)
            continue
        if gang.state is GangState.STOPPING and gang.ended | here == gang.everyone:
            found += settle(state, gang, now_ms, 0, FailureClass.NODE_LOST, name)
        else:
            found.append(e.TasksLost(now_ms, gang.id, gang.attempt, here, name, FailureClass.NODE_LOST))
    return found


def _node_back(state: State, name: str, now_ms: int) -> list[e.Event]:
    """A node returns, unless another node has reported one of its GPUs meanwhile."""
    node = state.nodes.get(name)
    if node is None or not node.lost:
        return []
    moved = any(gpu.uuid and state.gpu_owners.get(gpu.uuid, name) != name for gpu in node.spec.gpus)
    return [] if moved else [e.NodeReturned(now_ms, name)]


def _awaits_judgement(gang: Gang) -> bool:
    """Whether all tasks have ended and the cause is not decided yet."""
    return gang.state is GangState.STOPPING and gang.eviction is not None and gang.ended == gang.everyone


def _node_observed(state: State, fact: f.NodeObserved, now_ms: int) -> list[e.Event]:
    node = state.nodes.get(fact.node)
    if node is None or (node.health, node.why) == (fact.health, fact.why):
        return []
    return [e.NodeHealthChanged(now_ms, fact.node, fact.health, fact.why)]


def _node_ends(state: State, fact: f.NodeEnds, now_ms: int) -> list[e.Event]:
    """Set the end time of a node. It is reported repeatedly with small differences; less than 5 s is ignored."""
    node = state.nodes.get(fact.node)
    if node is None or node.until_ms == fact.until_ms:
        return []
    is_same = None not in (node.until_ms, fact.until_ms) and abs((node.until_ms or 0) - (fact.until_ms or 0)) < 5_000
    return [] if is_same else [e.NodeEndSet(now_ms, fact.node, fact.until_ms)]


def _gpu_observed(state: State, fact: f.GpuObserved, now_ms: int) -> list[e.Event]:
    node = state.nodes.get(fact.node)
    if node is None or not 0 <= fact.gpu < len(node.spec.gpus):
        return []
    if (node.gpu_health.get(fact.gpu, Health.HEALTHY), node.gpu_why.get(fact.gpu, "")) == (fact.health, fact.why):
        return []
    found: list[e.Event] = [e.GpuHealthChanged(now_ms, fact.node, fact.gpu, fact.health, fact.why)]
    if fact.health is Health.FAILED:
        for gang_id in state.tenants[fact.node]:
            gang = state.gangs[gang_id]
            owns = any(seat.node == fact.node and seat.gpus >> fact.gpu & 1 for seat in gang.seats)
            if owns and gang.state is not GangState.STOPPING:
                deadline = now_ms + state.jobs[gang.job].spec.grace_ms
                found.append(
                    e.GangEvicted(
                        now_ms,
                        gang.id,
                        gang.attempt,
                        Cause.FAILURE,
                        deadline,
                        failure=FailureClass.GPU_FAULT,
                        node=fact.node,
                    )
                )
    return found


def _due(state: State, gang: Gang, now_ms: int) -> list[e.Event]:
    """The events of timers that are due for a gang."""
    spec = state.jobs[gang.job].spec
    if gang.state is GangState.WAITING:
        latest = None if spec.deadline_ms is None else spec.deadline_ms - (spec.expected_ms or 0)
        if latest is not None and now_ms >= latest:
            why = "could no longer finish before its deadline"
            return [e.GangFinished(now_ms, gang.id, gang.attempt, GangState.CANCELLED, why)]
        over = 0
        if gang.blockers & Blocker.BEGIN and spec.begin_ms is not None and now_ms >= spec.begin_ms:
            over |= Blocker.BEGIN
        if gang.blockers & Blocker.BACKOFF and now_ms >= gang.not_before_ms:
            over |= Blocker.BACKOFF
        return [e.GangAwoke(now_ms, gang.id, gang.attempt, over)] if over else []
    if gang.state is GangState.STARTING and now_ms >= gang.placed_ms + spec.start_timeout_ms:
        return evict(state, gang, Cause.START_TIMEOUT, now_ms)
    if gang.state in (GangState.STARTING, GangState.RUNNING) and state.ending:
        leave = leave_ms(state, gang)
        if leave is not None and now_ms >= leave:
            return _leave_before_the_end(state, gang, now_ms)
    if (
        gang.state is GangState.RUNNING
        and spec.time_limit_ms is not None
        and now_ms >= gang.started_ms + spec.time_limit_ms
    ):
        return evict(state, gang, Cause.TIME_LIMIT, now_ms)
    if _awaits_judgement(gang):
        assert gang.eviction is not None
        return settle(state, gang, now_ms, 0, None) if now_ms >= gang.eviction.judge_ms else []
    if gang.state is GangState.STOPPING and gang.eviction is not None and now_ms >= gang.eviction.deadline_ms:
        return [] if gang.grace_over else [e.GraceEnded(now_ms, gang.id, gang.attempt)]
    return []


def _leave_before_the_end(state: State, gang: Gang, now_ms: int) -> list[e.Event]:
    """Stop a gang before one of its nodes is withdrawn: with its grace period, or what is left of it."""
    node = min((seat.node for seat in gang.all_seats if seat.node in state.ending), key=lambda name: state.ending[name])
    deadline = min(now_ms + state.jobs[gang.job].spec.grace_ms, max(now_ms, state.ending[node] - END_MARGIN_MS))
    return [e.GangEvicted(now_ms, gang.id, gang.attempt, Cause.DRAIN, deadline, node=node)]
