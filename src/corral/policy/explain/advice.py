"""Changes of a request that would let a waiting gang start: each is tried with the policy itself.

A change is offered only if the same policy, planning on the same snapshot with nothing else altered, then
places the gang or preempts for it: at the end of its queue, where a job that is submitted again is placed. Knows what
may be changed; must not know how changes are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from msgspec.structs import replace

from corral.amount_text import quantity, size
from corral.core.cluster.resources import GPU_MILLI, Demand, amounts
from corral.core.cluster.slots import NODE_LEVEL, room_by_domain, slots
from corral.core.engine import Policy
from corral.core.intake.submission import demand_faults
from corral.core.model import Blocker, Gang, GangState, Profile, QueueSpec
from corral.core.plan import MakeRoom, Place
from corral.core.queues.backlog import Backlog
from corral.core.snapshot import Snapshot
from corral.duration_text import span
from corral.policy.explain.reasons import (
    AmountShort,
    Change,
    Held,
    Hold,
    OverLimit,
    OverUserLimit,
    ReservedFor,
)

MINUTE_MS = 60_000

#: A change, the gang as it would then be, and the queue whose terms would be others, if any.
Trial = tuple[Change, Gang, QueueSpec | None]


def smallest_changes(snapshot: Snapshot, policy: Policy, hold: Hold) -> list[Change]:
    """Changes each of which alone would let a gang start now that waits for these reasons, those of the least
    consequence first."""
    gang = snapshot.state.gangs[hold.gang]
    if gang.state is not GangState.WAITING or gang.claim:
        return []
    return [
        change
        for change, other, terms in _trials(snapshot, gang, hold.reasons)
        if _starts(snapshot, policy, other, terms)
    ]


def _starts(snapshot: Snapshot, policy: Policy, gang: Gang, terms: QueueSpec | None) -> bool:
    """Whether the policy starts it on the same snapshot with the gang, and terms of a queue, exchanged."""
    if gang.blockers or any(demand_faults(gang.demand)):
        return False
    twin = copy(snapshot.state)
    twin.gangs = {**twin.gangs, gang.id: gang}
    twin.backlog = Backlog()
    for entry in snapshot.state.backlog.entries():
        for name in entry:
            if name != gang.id:
                twin.backlog.add(twin.gangs[name])
    twin.backlog.add(gang)
    if gang.rank != snapshot.state.gangs[gang.id].rank:  # submitted again, it has no reservation
        twin.reservations = {name: reservation for name, reservation in twin.reservations.items() if name != gang.id}
    if terms is not None:
        twin.queues = twin.queues.copy()
        twin.queues.put(terms)
    plan = policy(Snapshot(twin, snapshot.now_ms))
    return any(d.gang == gang.id and isinstance(d, Place | MakeRoom) for d in plan.decisions)


def _trials(snapshot: Snapshot, gang: Gang, reasons: tuple[object, ...]) -> Iterator[Trial]:
    for reason in reasons:
        match reason:
            case Held():
                yield Change("held", "", "release it"), _unheld(gang), None
            case ReservedFor():
                left = _rounded(reason.at_ms - snapshot.now_ms - snapshot.job(gang).spec.grace_ms)
                if left > 0:
                    shorter = Change("time_limit", str(left), f"limit its time to {span(left)}")
                    yield shorter, _resubmitted(snapshot, gang, gang.demand, left), None
            case AmountShort() if reason.best:
                yield _less_of(snapshot, gang, reason.name, reason.best)
            case OverLimit() | OverUserLimit():
                yield _raised(snapshot, gang, reason)
            case _:
                pass
    for change, demand in (*_looser(snapshot, gang.demand), *_reshaped(gang.demand), *_fewer(snapshot, gang)):
        yield change, _resubmitted(snapshot, gang, demand, gang.profile.expected_ms), None


def _rounded(left_ms: int) -> int:
    """A time limit that is still short enough when a person has read it: a little less, in whole minutes or seconds."""
    less = left_ms - max(left_ms // 100, 1_000)
    return less - less % (MINUTE_MS if less >= 10 * MINUTE_MS else 1_000)


def _resubmitted(snapshot: Snapshot, gang: Gang, demand: Demand, expected_ms: int | None) -> Gang:
    """The changed request as a new submission: at the end of its queue, without any wait so far."""
    now, last = snapshot.now_ms, snapshot.state.next_rank
    profile = Profile(demand, expected_ms, gang.profile.avoid)
    overrun = gang.overrun_ms if expected_ms == gang.profile.expected_ms else 0
    new = replace(gang, profile=profile, rank=last, submitted_ms=now, waiting_since_ms=now, overrun_ms=overrun)
    return replace(new, done_ms=0, served_gpu_ms=0)


def _unheld(gang: Gang) -> Gang:
    return replace(gang, blockers=gang.blockers & ~(Blocker.HELD | Blocker.GANG_HELD))


def _less_of(snapshot: Snapshot, gang: Gang, name: str, best: int) -> Trial:
    task = gang.demand.task
    less = replace(task, amounts=amounts({**dict(task.amounts), name: best}))
    change = Change(name, str(best), f"ask for {quantity(name, best)} for each task")
    return change, _resubmitted(snapshot, gang, replace(gang.demand, task=less), gang.profile.expected_ms), None


def _raised(snapshot: Snapshot, gang: Gang, reason: OverLimit | OverUserLimit) -> Trial:
    field = "limit" if isinstance(reason, OverLimit) else "user_limit"
    more = reason.used + reason.asked
    spec = snapshot.state.queues.queues[reason.queue].spec
    terms = replace(spec, **{field: amounts({**dict(getattr(spec, field)), reason.name: more})})
    text = f"raise {field} of queue {reason.queue} to {quantity(reason.name, more)}"
    return Change(f"queue.{field}", str(more), text), gang, terms


def _looser(snapshot: Snapshot, demand: Demand) -> Iterator[tuple[Change, Demand]]:
    """Constraints on where and on what, one let go at a time."""
    levels = (*snapshot.state.topology.levels, NODE_LEVEL)
    if demand.prefer:
        yield Change("prefer", "", f"do not wait for one {demand.prefer}"), replace(demand, prefer="")
    if demand.within in levels:
        for level in levels[levels.index(demand.within) - 1 : 0 : -1]:
            yield Change("within", level, f"within {level} is enough"), replace(demand, within=level)
        yield Change("within", "", f"do without within {demand.within}"), replace(demand, within="")
    if demand.spread:
        yield Change("spread", "", f"do without spread over {demand.spread}"), replace(demand, spread="")
    task = demand.task
    if task.models:
        change = Change("models", "", f"accept other models than {' or '.join(task.models)}")
        yield change, replace(demand, task=replace(task, models=()))
    if task.vram_mib_min:
        change = Change("vram_mib_min", "0", f"accept GPUs with less than {size(task.vram_mib_min)}")
        yield change, replace(demand, task=replace(task, vram_mib_min=0))


def _reshaped(demand: Demand) -> Iterator[tuple[Change, Demand]]:
    """As many GPUs in smaller pieces."""
    task, pieces = demand.task, 2
    while not demand.is_elastic and task.gpus and task.gpus % pieces == 0:
        each = replace(
            task,
            gpus=task.gpus // pieces,
            amounts=tuple((name, -(-value // pieces)) for name, value in task.amounts),
        )
        tasks = demand.tasks * pieces
        text = f"ask for {tasks} tasks of {each.gpus} instead of {demand.tasks} of {task.gpus}"
        yield (
            Change("tasks", f"{tasks} x {each.gpus}", text),
            replace(demand, task=each, tasks=tasks, tasks_min=0),
        )
        pieces *= 2


def _fewer(snapshot: Snapshot, gang: Gang) -> Iterator[tuple[Change, Demand]]:
    """As many tasks as there is room for, or as the queue may still have."""
    demand, capacity = gang.demand, snapshot.state.capacity
    column = slots(capacity, demand, gang.profile.avoid)
    level = demand.within or snapshot.state.topology.levels[0]
    room = max((count for count, _ in room_by_domain(capacity.topology, column, level)), default=0) - demand.spares
    counts = {room}
    if demand.task.gpus:
        dimension = snapshot.state.queues.room(gang.queue, GPU_MILLI, snapshot.now_ms)
        counts |= set() if dimension is None else {min(room, dimension // (1000 * demand.task.gpus) - demand.spares)}
    for count in sorted(counts, reverse=True):
        count -= count % demand.chunk
        if 0 < count < demand.smallest:
            text = f"ask for {count} tasks instead of {demand.smallest}"
            yield Change("tasks", str(count), text), replace(demand, tasks=count, tasks_min=0, step=1)
