"""Commands of users on some gangs of a job: elements of an array, or roles. Their job and its other gangs continue.

Each is checked against the state and becomes events, or a refusal. Changes of whole jobs are in ``commands``. Knows
nothing about rights, nor how users name gangs.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.core import events as e
from corral.core.gang_id import short_name
from corral.core.intake.commands import Answer, evict
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules, over_ceiling
from corral.core.model import Blocker, Cause, Gang, GangState
from corral.core.state import State


def cancel(state: State, gangs: Sequence[str], now_ms: int, at_once: bool = False) -> Answer:
    """Cancel gangs. ``at_once``: without grace, even if they are being cancelled with grace."""
    found: list[e.Event] = []
    for gang in _unfinished(state, gangs):
        found += _cancelled(state, gang, now_ms, at_once)
    return found or Refusal("job_over", f"{named(gangs)} {_has(gangs)} already ended or been cancelled")


def _cancelled(state: State, gang: Gang, now_ms: int, at_once: bool) -> list[e.Event]:
    if gang.state is GangState.WAITING:
        return [e.GangFinished(now_ms, gang.id, gang.attempt, GangState.CANCELLED, "cancelled")]
    is_new = not gang.cancelled and not state.jobs[gang.job].cancelled
    found: list[e.Event] = [e.GangCancelled(now_ms, gang.id, gang.attempt)] if is_new else []
    if not at_once:
        return found + evict(state, gang, Cause.CANCEL, now_ms)
    if gang.state is not GangState.STOPPING:
        found.append(e.GangEvicted(now_ms, gang.id, gang.attempt, Cause.CANCEL, now_ms, is_charged=True))
    return found if gang.grace_over else [*found, e.GraceEnded(now_ms, gang.id, gang.attempt)]


def hold(state: State, gangs: Sequence[str], now_ms: int) -> Answer:
    """Hold gangs: they do not start. Those that run continue."""
    found: list[e.Event] = []
    for gang in _unfinished(state, gangs):
        if not gang.blockers & (Blocker.HELD | Blocker.GANG_HELD):
            found += [e.ClaimDropped(now_ms, gang.id, gang.attempt)] if gang.claim else []
            found.append(e.GangHeld(now_ms, gang.id, gang.attempt))
    return found or Refusal("cannot_hold", f"{named(gangs)} {_has(gangs)} ended, or {_is(gangs)} held already")


def release(state: State, gangs: Sequence[str], now_ms: int) -> Answer:
    """Release held gangs. If their whole job is held, its other gangs stay held."""
    chosen = [gang for gang in _unfinished(state, gangs) if gang.blockers & (Blocker.HELD | Blocker.GANG_HELD)]
    if not chosen:
        return Refusal("not_held", f"{named(gangs)} {_is(gangs)} not held")
    job = state.jobs[chosen[0].job]
    if not job.held:
        return [e.GangReleased(now_ms, gang.id, gang.attempt) for gang in chosen]
    freed = {gang.id for gang in chosen}
    others = [gang for gang in _unfinished(state, job.gangs) if gang.id not in freed]
    return [e.JobReleased(now_ms, job.id), *(e.GangHeld(now_ms, gang.id, gang.attempt) for gang in others)]


def requeue(state: State, gangs: Sequence[str], now_ms: int) -> Answer:
    """Stop running gangs, with grace, and requeue them."""
    holding = [gang for gang in _unfinished(state, gangs) if gang.holds_seats]
    if not holding:
        return Refusal("not_running", f"{named(gangs)} {_is(gangs)} not running")
    return [event for gang in holding for event in evict(state, gang, Cause.REQUEUE, now_ms)]


def change_priority(
    state: State, gangs: Sequence[str], priority: int, now_ms: int, rules: SiteRules | None = None
) -> Answer:
    """Change the priority of gangs. ``rules``: limits of the site; None for users who may exceed them."""
    chosen = _unfinished(state, gangs)
    if not chosen:
        return Refusal("job_over", f"{named(gangs)} {_has(gangs)} ended")
    bound = over_ceiling(state.queues, chosen[0].queue, priority, rules)
    if bound is not None:
        return bound
    return [e.GangPriorityChanged(now_ms, gang.id, gang.attempt, priority) for gang in chosen]


def _unfinished(state: State, gangs: Sequence[str]) -> list[Gang]:
    return [state.gangs[name] for name in gangs if not state.gangs[name].is_over]


def named(gangs: Sequence[str]) -> str:
    """For people: ``35[7]``, or ``35[3], 35[4] and 5 more``."""
    shown = ", ".join(short_name(gang) for gang in gangs[:2])
    return shown + (f" and {len(gangs) - 2} more" if len(gangs) > 2 else "")


def _has(gangs: Sequence[str]) -> str:
    return "has" if len(gangs) == 1 else "have"


def _is(gangs: Sequence[str]) -> str:
    return "is" if len(gangs) == 1 else "are"
