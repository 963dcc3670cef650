"""Whether starts that plans promised were kept, where all lengths are known exactly.

A promise binds later plans, too, whatever becomes of shares. It may be moved by who goes before by right: a higher
priority, an owner within its guarantee, an older one of its own queue and user, or who has waited longer than anyone
should; and by one that was promised a start before it in the same plan and can have it earlier. By nobody else.
"""

from __future__ import annotations

from corral.core import events as e
from corral.core.model import Right, StartMoved
from tests.judges.runs.lives import Life, lives
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
    is_older = (mover.queue, mover.user) == (mine.queue, mine.user) and mover.submitted_ms < mine.submitted_ms
    return is_older or _was_overdue(run, mover, after_ms, until_ms)


def _may_be_owed(run: Run, mover: Life, mine: Life) -> bool:
    """Whether the queue of one, apart from what it shares with the other, is guaranteed anything."""
    theirs = mine.queue.split("/")
    return any(
        spec.guarantee and spec.name.split("/") != theirs[: spec.name.count("/") + 1]
        for spec in run.site.queues
        if mover.queue == spec.name or mover.queue.startswith(f"{spec.name}/")
    )


def _was_overdue(run: Run, life: Life, after_ms: int, until_ms: int) -> bool:
    """Whether a gang had waited for longer than anyone should at some time of a period."""
    patience = run.site.patience_ms
    return patience is not None and any(
        begin + patience <= min(until_ms, run.end_ms if end is None else end) and (end is None or end >= after_ms)
        for begin, end in life.waits
    )


# ---- the record ----------------------------------------------------------------------------------------------------


def judge_moved_starts(run: Run) -> list[str]:
    """Every start that the journal says is reserved: it was kept, or the journal says by then who moved it and by which
    right, and that gang had this right; or nothing is reserved for a gang any more that has no seats to wait for."""
    known, found = lives(run), list[str]()
    records = [event for event in run.events if isinstance(event, e.StartsPromised)]
    for event in records:
        for promise in event.promises:
            mine = known[promise.gang]
            is_kept = any(event.at_ms <= stay.placed_ms <= promise.at_ms for stay in mine.stays)
            if is_kept or promise.at_ms > run.end_ms:
                continue
            moves = [
                (later.at_ms, each)
                for later in records
                if event.at_ms < later.at_ms <= promise.at_ms or (later.at_ms == event.at_ms and later is not event)
                for each in later.moved
                if each.gang == promise.gang
            ]
            told = f"a start of {promise.gang} at {since(promise.at_ms) / MINUTE:.1f} min was reserved"
            told += f" at {since(event.at_ms) / MINUTE:.1f} min"
            if not moves:
                found.append(f"{told}, and nobody is recorded to have moved it")
            elif not any(_has_right(run, known, at_ms, each) for at_ms, each in moves):
                movers = ", ".join(f"{each.by} ({each.right})" for _, each in moves)
                found.append(f"{told} and moved by {movers}, without that right")
    return found


def _has_right(run: Run, known: dict[str, Life], at_ms: int, moved: StartMoved) -> bool:
    mover, mine = known[moved.by], known[moved.gang]
    match moved.right:
        case Right.PRIORITY:
            return mover.spec.priority > mine.spec.priority
        case Right.GUARANTEE:
            return _may_be_owed(run, mover, mine) or _is_guaranteed(run, mover)
        case Right.PATIENCE:
            return mover.spec.priority >= mine.spec.priority and _was_overdue(run, mover, at_ms, at_ms)
        case Right.RESERVATION:
            return mover.spec.priority == mine.spec.priority and (
                _is_older(mover, mine) or _had_one_before(run, moved.by, moved.gang, at_ms)
            )
        case Right.LIMIT:
            return _shares_a_bound(run, mover, mine)


def _shares_a_bound(run: Run, mover: Life, mine: Life) -> bool:
    """Whether the two have a limit or a guarantee in common; what somebody does not lend is in common to all."""
    above = {name for name in _path(mover) if name in _path(mine)}
    return any(
        spec.lend
        or (spec.name in above and (spec.limit or spec.guarantee or (spec.user_limit and mover.user == mine.user)))
        for spec in run.site.queues
    )


def _path(life: Life) -> list[str]:
    parts = life.queue.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _is_guaranteed(run: Run, mover: Life) -> bool:
    """Whether a queue of its path is guaranteed anything: then it may go before who is not within that guarantee."""
    return any(
        spec.guarantee and (mover.queue == spec.name or mover.queue.startswith(f"{spec.name}/"))
        for spec in run.site.queues
    )


def _is_older(mover: Life, mine: Life) -> bool:
    return (mover.queue, mover.user) == (mine.queue, mine.user) and mover.submitted_ms <= mine.submitted_ms


def _had_one_before(run: Run, mover: str, gang: str, at_ms: int) -> bool:
    """Whether one gang had its reservation before another had."""
    order = list[str]()
    for event in run.events:
        if isinstance(event, e.GangPlaced | e.GangClaimed) and event.at_ms < at_ms and event.gang in order:
            order.remove(event.gang)
        elif isinstance(event, e.StartsPromised) and event.at_ms <= at_ms:
            order = [name for name in order if name not in event.withdrawn or event.at_ms == at_ms]
            order += [each.gang for each in event.promises if each.gang not in order]
    return mover in order and gang in order and order.index(mover) < order.index(gang)
