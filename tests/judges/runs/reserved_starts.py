"""Whether starts that plans promised were kept, where all lengths are known exactly.

A promise binds later plans, too, whatever becomes of shares. It may be moved by who goes before by right: a higher
priority, an owner within its guarantee, an older one of its own queue and user, or who has waited longer than anyone
should; and by one that was promised a start before it in the same plan and can have it earlier. By nobody else.
"""

from __future__ import annotations

from tests.judges.runs.lives import Life, Stay, lives
from tests.judges.runs.site import MINUTE, Run, since


def judge_reserved_start(run: Run, job: str) -> list[str]:
    """A gang starts when it was first said to, or earlier."""
    gang = f"{job}/main"
    first = next((each.at_ms for plan in run.plans for each in plan.reservations if each.gang == gang), None)
    placed = lives(run)[gang].first_ms
    if first is None or first > run.end_ms or (placed is not None and placed <= first):
        return []
    then = "not at all" if placed is None else f"at {since(placed) / MINUTE:.0f} min"
    return [f"{job} was promised a start at {since(first) / MINUTE:.0f} min and started {then}"]


def judge_reserved_starts(run: Run) -> list[str]:
    """Every promise of every plan, for runs in which nothing takes longer than it was said to."""
    known, found = lives(run), dict[str, str]()
    told = [(stay.placed_ms, life.gang) for life in known.values() for stay in life.stays]
    told += [(plan.at_ms, each.gang) for plan in run.plans for each in plan.reservations]
    told += [(plan.at_ms, each.gang) for plan in run.plans for each in getattr(plan, "parts", ())]
    for plan in run.plans:
        for at, each in enumerate(plan.reservations):
            mine, ahead = known[each.gang], {other.gang for other in plan.reservations[:at]}
            is_kept = any(plan.at_ms <= stay.placed_ms <= each.at_ms for stay in mine.stays)
            if is_kept or each.at_ms > run.end_ms or each.gang in found:
                continue
            movers = [known[name] for at_ms, name in told if plan.at_ms <= at_ms <= each.at_ms]
            if not any(
                mover.gang in ahead or _goes_before(run, mover, mine, plan.at_ms, each.at_ms) for mover in movers
            ):
                when = f"at {since(plan.at_ms) / MINUTE:.1f} min a start at {since(each.at_ms) / MINUTE:.1f} min"
                found[each.gang] = f"{each.gang} was promised {when}, and nobody had a right to move it"
    return list(found.values())


def _goes_before(run: Run, mover: Life, mine: Life, after_ms: int, until_ms: int) -> bool:
    """Whether a gang that started, or was promised a start, meanwhile may have gone before the one with the promise."""
    if mover is mine:
        return False
    if mover.spec.priority > mine.spec.priority or _may_be_owed(run, mover, mine):
        return True
    if mover.spec.priority < mine.spec.priority:
        return False
    began = [stay for stay in mover.stays if after_ms <= stay.placed_ms <= until_ms]
    is_older = (mover.queue, mover.user) == (mine.queue, mine.user) and mover.submitted_ms < mine.submitted_ms
    return is_older or any(_was_overdue(run, mover, stay) for stay in began)


def _may_be_owed(run: Run, mover: Life, mine: Life) -> bool:
    """Whether the queue of one, apart from what it shares with the other, is guaranteed anything."""
    theirs = mine.queue.split("/")
    return any(
        spec.guarantee and spec.name.split("/") != theirs[: spec.name.count("/") + 1]
        for spec in run.site.queues
        if mover.queue == spec.name or mover.queue.startswith(f"{spec.name}/")
    )


def _was_overdue(run: Run, life: Life, stay: Stay) -> bool:
    waited = [until - begin for begin, until in life.waits if until == stay.placed_ms]
    return run.site.patience_ms is not None and any(each >= run.site.patience_ms for each in waited)
