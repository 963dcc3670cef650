"""Commits a plan: each decision is checked against the current state, and what no longer holds is dropped.

A plan may be of any age. Committing it never overcommits anything, never splits a gang, never revives an old attempt,
and never takes a queue over its limits. A plan made from the current state commits in full.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from corral.core import events as e
from corral.core.apply_gangs import is_in_backlog
from corral.core.cluster.resources import GPU_MILLI, Amounts, Seat, amount_of
from corral.core.model import Cause, Gang, GangState, Reservation
from corral.core.plan import Decision, DropClaim, Evict, Grow, MakeRoom, Place, Plan, Repair
from corral.core.snapshot import Draft, Snapshot
from corral.core.state import State, lasts

EVICTABLE = (GangState.STARTING, GangState.RUNNING, GangState.BROKEN)


def commit(state: State, plan: Plan, now_ms: int) -> list[e.Event]:
    """The events of all decisions that still hold, in the order of the plan."""
    if not plan.decisions:
        return _reserve(state, plan, (), now_ms)
    draft = Draft(Snapshot(state, now_ms))
    found: list[e.Event] = []
    for decision in plan.decisions:
        found += commit_one(draft, decision)
        draft.keep()
    return found + _reserve(state, plan, draft.served, now_ms)


def _reserve(state: State, plan: Plan, served: Container[str], now_ms: int) -> list[e.Event]:
    """The changes to durable reservations, for a plan that keeps or remembers them. A reservation of a gang that no
    longer waits is void."""
    if not plan.keeps and not plan.remembers:
        return []
    given, known = {each.gang: each for each in plan.reservations}, state.reservations
    moved = tuple(each for each in plan.moved if each.gang in known and each.gang not in served)
    later = {each.gang for each in moved}
    changed = tuple(
        each
        for each in plan.reservations
        if (each != known.get(each.gang) if plan.keeps else _is_new(each, known.get(each.gang), later))
        and each.gang not in served
        and _is_in_line(state, each.gang)
    )
    withdrawn = tuple(name for name in state.reservations if name not in given and name not in served)
    return [e.StartsPromised(now_ms, changed, withdrawn, moved)] if changed or withdrawn or moved else []


def _is_new(given: Reservation, known: Reservation | None, moved: Container[str]) -> bool:
    """Whether a reservation that a plan remembers is to be recorded: its time, only if another gang made it later."""
    return known is None or (given.gang in moved and given.at_ms != known.at_ms)


def _is_in_line(state: State, name: str) -> bool:
    gang = state.gangs.get(name)
    return gang is not None and is_in_backlog(gang)


def commit_one(draft: Draft, decision: Decision) -> list[e.Event]:
    """The events of one decision; none if it no longer holds. The draft then contains it."""
    gang = draft.state.gangs.get(decision.gang)
    if gang is None or gang.id in draft.served or gang.id in draft.leaving:
        return []
    return _COMMIT[type(decision)](draft, gang, decision)


def _place(draft: Draft, gang: Gang, decision: Place) -> list[e.Event]:
    if gang.state is not GangState.WAITING or gang.blockers or gang.attempt + 1 != decision.attempt:
        return []
    seats = decision.seats + decision.spares
    is_whole = _is_whole(gang, decision.seats, decision.spares, goes_on=_has_claim(draft, gang))
    if not is_whole or not lasts(draft.state, gang, seats, draft.now_ms):
        return []
    if _has_claim(draft, gang):
        if not _same_gpus(gang.claim, seats) or not _are_free(draft, gang, seats, own_claim=True):
            return []
        draft.place_on_claim(gang, seats)
    else:
        if not _are_free(draft, gang, seats):
            return []
        charge = draft.state.charge_for(gang.demand.task, seats)
        gpu_ms = _gpu_ms(draft, gang, charge)
        if not _may_be_charged(draft, gang, charge, gpu_ms):
            return []
        draft.place(gang, seats, charge)
    until = decision.out_of_turn_until_ms
    return [e.GangPlaced(draft.now_ms, gang.id, decision.attempt, decision.seats, decision.spares, until)]


def _make_room(draft: Draft, gang: Gang, decision: MakeRoom) -> list[e.Event]:
    if (
        gang.state is not GangState.WAITING
        or gang.blockers
        or _has_claim(draft, gang)
        or gang.attempt + 1 != decision.attempt
    ):
        return []
    victims = [(draft.state.gangs.get(victim.gang), victim) for victim in decision.victims]
    for victim, told in victims:
        if victim is None or victim.state not in EVICTABLE or victim.attempt != told.attempt:
            return []
        if victim.id in draft.leaving or victim.id in draft.served or not set(told.keep) <= set(victim.seats):
            return []
    mark = draft.mark()
    kept: list[e.Event] = []
    found: list[e.Event] = []
    for victim, told in victims:
        assert victim is not None
        draft.evict(victim)
        deadline = draft.now_ms + draft.snapshot.job(victim).spec.grace_ms
        found.append(
            e.GangEvicted(draft.now_ms, victim.id, victim.attempt, told.cause, deadline, gang.id, told.price_gpu_ms)
        )
        if told.keep:
            draft.claim(victim, told.keep, draft.state.charge_for(victim.demand.task, told.keep))
            kept.append(e.GangClaimed(draft.now_ms, victim.id, victim.attempt, told.keep))
    whole = _are_of_size(gang, decision.seats) and len(decision.seats) - gang.demand.spares in gang.demand.sizes()
    whole = whole and lasts(draft.state, gang, decision.seats, draft.now_ms)
    if not whole or not _can_claim(draft, gang, decision.seats) or not _is_allowed(draft, gang, decision.seats):
        draft.undo(mark)
        return []
    draft.claim(gang, decision.seats, draft.state.charge_for(gang.demand.task, decision.seats))
    claimed = e.GangClaimed(draft.now_ms, gang.id, gang.attempt, decision.seats, decision.out_of_turn_until_ms)
    return [*found, *kept, claimed]


def _repair(draft: Draft, gang: Gang, decision: Repair) -> list[e.Event]:
    if gang.state is not GangState.BROKEN or gang.attempt + 1 != decision.attempt:
        return []
    seats = decision.seats + decision.spares
    fresh = [seat for seat in seats if seat not in gang.all_seats]
    is_whole = _is_whole(gang, decision.seats, decision.spares, goes_on=True)
    if not is_whole or not lasts(draft.state, gang, fresh, draft.now_ms):
        return []
    mark = draft.mark()
    draft.move(gang, (), ())
    are_free = _are_free(draft, gang, seats, kept=gang.all_seats)
    draft.undo(mark)
    if not are_free:
        return []
    draft.move(gang, seats, draft.state.charge_for(gang.demand.task, seats))
    return [e.GangRepaired(draft.now_ms, gang.id, decision.attempt, decision.seats, decision.spares, by_window=True)]


def _grow(draft: Draft, gang: Gang, decision: Grow) -> list[e.Event]:
    if gang.state is not GangState.RUNNING or gang.attempt != decision.attempt:
        return []
    extra = tuple(seat for seat in decision.seats if seat not in set(gang.seats))
    is_larger = len(decision.seats) in gang.demand.sizes() and len(decision.seats) > len(gang.seats)
    if not is_larger or not set(gang.seats) <= set(decision.seats) or not _are_of_size(gang, decision.seats):
        return []
    claim = decision.seats + gang.spares
    if not _are_free(draft, gang, extra) or not _is_allowed(draft, gang, extra):
        return []
    deadline = draft.now_ms + draft.snapshot.job(gang).spec.grace_ms
    if not lasts(draft.state, gang, claim, deadline):
        return []
    draft.evict(gang)
    draft.claim(gang, claim, draft.state.charge_for(gang.demand.task, claim))
    return [
        e.GangEvicted(draft.now_ms, gang.id, gang.attempt, Cause.GROW, deadline, gang.id),
        e.GangClaimed(draft.now_ms, gang.id, gang.attempt, claim),
    ]


def _evict(draft: Draft, gang: Gang, decision: Evict) -> list[e.Event]:
    if gang.state not in EVICTABLE or gang.attempt != decision.attempt:
        return []
    draft.evict(gang)
    deadline = draft.now_ms + draft.snapshot.job(gang).spec.grace_ms
    return [e.GangEvicted(draft.now_ms, gang.id, gang.attempt, decision.cause, deadline, failure=decision.failure)]


def _drop_claim(draft: Draft, gang: Gang, decision: DropClaim) -> list[e.Event]:
    if not _has_claim(draft, gang) or gang.attempt != decision.attempt:
        return []
    draft.drop_claim(gang)
    return [e.ClaimDropped(draft.now_ms, gang.id, gang.attempt)]


_COMMIT: dict[type, Callable[[Draft, Gang, Any], list[e.Event]]] = {
    Place: _place,
    MakeRoom: _make_room,
    Repair: _repair,
    Grow: _grow,
    Evict: _evict,
    DropClaim: _drop_claim,
}


def _has_claim(draft: Draft, gang: Gang) -> bool:
    return bool(gang.claim) and gang.id not in draft.dropped


# ---- checks --------------------------------------------------------------------------------------------------------


def _is_whole(gang: Gang, seats: Sequence[Seat], spares: Sequence[Seat], goes_on: bool) -> bool:
    """Whether the seats are complete: the right number, each of the right size. A gang that goes on may have used up
    spares."""
    demand = gang.demand
    if len(seats) not in demand.sizes() or len(spares) > demand.spares:
        return False
    if len(spares) < demand.spares and not goes_on:
        return False
    slice_mib = demand.task.slice_mib
    each = 1 if slice_mib else demand.task.gpus
    for seat in (*seats, *spares):  # noqa: SIM110 - a loop is quicker than all() for the few that most gangs have
        if seat.slice_mib != slice_mib or seat.gpus.bit_count() != each:
            return False
    return True


def _are_of_size(gang: Gang, seats: Sequence[Seat]) -> bool:
    """Whether each seat has as many GPUs as a task requests; a slice is on one."""
    task = gang.demand.task
    each = 1 if task.slice_mib else task.gpus
    return all(seat.gpus.bit_count() == each for seat in seats)


def _same_gpus(claim: Sequence[Seat], seats: Sequence[Seat]) -> bool:
    return [(seat.node, seat.gpus) for seat in claim] == [(seat.node, seat.gpus) for seat in seats]


def _are_free(
    draft: Draft, gang: Gang, seats: Sequence[Seat], own_claim: bool = False, kept: Sequence[Seat] = ()
) -> bool:
    """Whether the gang could take all of these seats together now. Does not change the draft."""
    capacity, task = draft.capacity, gang.demand.task
    accepted, number = capacity.topology.accepted(task), capacity.topology.number
    mark = capacity.mark()
    # several seats on one node must be tried together
    share_nodes = len(seats) > 1 and len({seat.node for seat in seats}) < len(seats)
    if own_claim:
        for seat in gang.claim:
            n = number.get(seat.node)
            if n is not None:
                capacity.unclaim(n, seat.gpus, gang.amounts)
    fits = True
    for seat in seats:
        n = number.get(seat.node)
        if n is None or not _has_room(draft, gang, n, seat, accepted[capacity.topology.kind[n]], seat in kept):
            fits = False
            break
        if share_nodes:
            capacity.take(n, seat.gpus, seat.slice_mib, gang.amounts)
    capacity.undo(mark)
    return fits


def _has_room(draft: Draft, gang: Gang, n: int, seat: Seat, accepted: int, is_kept: bool) -> bool:
    """Whether a seat has room. A seat that the gang already holds may stay on a node that accepts no new tasks."""
    capacity = draft.capacity
    if not capacity.open[n] and not (is_kept and not draft.state.nodes[seat.node].lost):
        return False
    if seat.gpus & ~accepted:
        return False
    if seat.gpus & capacity.claimed[n] or (seat.gpus & ~capacity.up[n] and not is_kept):
        return False
    shared = capacity.vram.get((n, seat.gpus.bit_length() - 1)) if seat.slice_mib else None
    if shared is None:
        if seat.gpus & capacity.used[n]:
            return False
    elif shared < seat.slice_mib:
        return False
    return capacity.tasks_by_amounts(n, gang.amounts, 1) == 1 if gang.amounts else True


def _can_claim(draft: Draft, gang: Gang, seats: Sequence[Seat]) -> bool:
    """Whether these seats are free, or will be once all gangs that are stopping have stopped."""
    capacity, task = draft.capacity, gang.demand.task
    accepted, number = capacity.topology.accepted(task), capacity.topology.number
    leaving = draft.leaving_masks({seat.node: None for seat in seats})
    taken: dict[int, int] = {}
    tasks: dict[int, int] = {}
    for seat in seats:
        n = number.get(seat.node)
        if n is None or not capacity.open[n]:
            return False
        blocked = capacity.claimed[n] | capacity.used[n] & ~leaving[seat.node] | taken.get(n, 0)
        if task.wants_gpu and seat.gpus & ~(capacity.up[n] & accepted[capacity.topology.kind[n]] & ~blocked):
            return False
        taken[n] = taken.get(n, 0) | seat.gpus
        tasks[n] = tasks.get(n, 0) + 1
    return len(seats) >= gang.demand.smallest and all(
        (left := capacity.left[name][n]) is not None and left - capacity.pledged.get((name, n), 0) >= each * count
        for n, count in tasks.items()
        for name, each in gang.amounts
    )


def _is_allowed(draft: Draft, gang: Gang, seats: Sequence[Seat]) -> bool:
    """Whether the queue may be charged for these seats."""
    charge = draft.state.charge_for(gang.demand.task, seats)
    return _may_be_charged(draft, gang, charge, _gpu_ms(draft, gang, charge))


def _may_be_charged(draft: Draft, gang: Gang, charge: Amounts, gpu_ms: int) -> bool:
    tree = draft.queues
    if not tree.is_bounded(gang.queue):
        return True
    return next(tree.shortfalls(gang.queue, gang.user, dict(charge), gpu_ms, draft.now_ms), None) is None


def _gpu_ms(draft: Draft, gang: Gang, charge: Amounts) -> int:
    return (amount_of(charge, GPU_MILLI) or 0) * draft.snapshot.expected_ms(gang) // 1000
