"""Whether making others leave was worth it: nobody is placed and evicted at one moment, no two gangs keep evicting each
other, and whoever others left for starts when they have gone."""

from __future__ import annotations

from collections import Counter

from corral.core import events as e
from corral.core.model import Cause
from corral.core.plan import DropClaim, MakeRoom, Place
from tests.judges.runs.lives import Life, evictions, lives
from tests.judges.runs.site import Run, since


def judge_peace(run: Run, stop_ms: int = 0) -> list[str]:
    """``stop_ms``: after the end of its grace a gang may need so much longer to be gone."""
    known = lives(run)
    return [*at_one_moment(known), *ping_pong(run), *in_vain(run, known, stop_ms), *left_out(run, known)]


def at_one_moment(known: dict[str, Life]) -> list[str]:
    """Except for a beneficiary that had to leave at that moment itself: a plan keeps nothing for a gang that still has
    seats, and it waits again only when it has stopped, which takes no time in some runs."""
    left = {(life.gang, stay.evicted.at_ms) for life in known.values() for stay in life.stays if stay.evicted}
    return [
        f"{life.gang} was placed and told to leave for {stay.evicted.beneficiary} at {since(stay.placed_ms)} ms"
        for life in known.values()
        for stay in life.stays
        if stay.was_preempted
        and stay.evicted is not None
        and stay.evicted.at_ms == stay.placed_ms
        and (stay.evicted.beneficiary, stay.placed_ms) not in left
    ]


def ping_pong(run: Run) -> list[str]:
    """Two gangs that made each other leave twice. Where time is shared that is the point of it."""
    count = Counter((each.gang, each.beneficiary) for each in evictions(run) if each.cause is not Cause.TIME_SHARE)
    return [
        f"{one} and {other} made each other leave {count[one, other]} and {count[other, one]} times"
        for one, other in count
        if one < other and min(count[one, other], count[other, one]) >= 2
    ]


def in_vain(run: Run, known: dict[str, Life], stop_ms: int) -> list[str]:
    """Those who were made to leave for a gang that did not start when they had gone, and with them who was leaving for
    others: it may get seats of theirs. Somebody with the right to make it leave may have taken over its claim: a more
    important gang, or one of another queue."""
    latest: dict[tuple[int, str], int] = {}
    told = [event for event in run.events if isinstance(event, e.GangEvicted)]
    for each in evictions(run):
        leaving = [other.deadline_ms for other in told if other.at_ms <= each.at_ms <= other.deadline_ms]
        latest[each.at_ms, each.beneficiary] = max(each.deadline_ms, *leaving) + stop_ms
    disturbed = [event.at_ms for event in run.events if isinstance(event, e.NodeEvent)]
    found = []
    for (at_ms, name), until_ms in latest.items():
        life = known[name]
        starts = any(at_ms <= stay.placed_ms <= until_ms for stay in life.stays)
        is_gone = life.finished_ms is not None and life.finished_ms <= until_ms
        is_disturbed = any(at_ms <= each <= until_ms for each in disturbed)
        is_disturbed = is_disturbed or any(at_ms <= each <= until_ms for each in taken_over(run, known, name))
        if not starts and not is_gone and not is_disturbed and until_ms <= run.end_ms:
            found.append(f"others left for {name} at {since(at_ms)} ms, and it did not start by {since(until_ms)} ms")
    return found


def taken_over(run: Run, known: dict[str, Life], name: str) -> list[int]:
    """When a plan dropped the claim of a gang and served another that may have a right against it."""
    mine = known[name]
    return [
        plan.at_ms
        for plan in run.plans
        if any(isinstance(each, DropClaim) and each.gang == name for each in plan.decisions)
        for each in plan.decisions
        if isinstance(each, Place | MakeRoom) and each.gang != name
        if known[each.gang].spec.priority > mine.spec.priority or known[each.gang].queue != mine.queue
    ]


def left_out(run: Run, known: dict[str, Life]) -> list[str]:
    """Gangs whose claim was dropped by a plan that gave as much to somebody right behind them."""
    found = []
    for plan in run.plans:
        placed = {each.gang for each in plan.decisions if isinstance(each, Place)}
        for dropped in (each.gang for each in plan.decisions if isinstance(each, DropClaim)):
            mine = known[dropped]
            found += [
                f"the claim of {dropped} was dropped at {since(plan.at_ms)} ms and {name} behind it was placed"
                for name in placed
                if dropped not in placed and _is_behind(known[name], mine)
            ]
    return found


def _is_behind(other: Life, mine: Life) -> bool:
    """Of the same queue, user and priority and shape, and later."""
    return (
        (other.queue, other.user, other.spec.priority, other.spec.gangs, other.spec.expected_ms)
        == (mine.queue, mine.user, mine.spec.priority, mine.spec.gangs, mine.spec.expected_ms)
        and other.submitted_ms > mine.submitted_ms
        and len(other.stays) == 1
    )
