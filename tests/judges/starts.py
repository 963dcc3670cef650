"""Judges of who starts: guarantee served, order, work conservation.

Each says from one plan whether a documented promise was kept.
"""

from __future__ import annotations

from math import inf

from corral.core.model import Cause
from corral.core.plan import DropClaim, MakeRoom, Place
from tests.judges.case import Case, Violation, told
from tests.judges.facts import GPU, Charge, Gang
from tests.judges.occupancy import Board, Floor, least_charge, model_sets
from tests.judges.queue_rules import asked_charge, bounds_broken, is_entitled, may_start, parting, share, user_share
from tests.judges.victims import Leaver, legal_set, may_ask, takes_over

MARGIN = 1 + 1e-6  # shares that differ by less are not told apart


# ---- a guarantee is always obtainable ------------------------------------------------------------------------------


def guarantee_served(case: Case) -> list[Violation]:
    """Whoever is within its guarantee starts, or has room made for it, as long as taking back what others borrow is
    enough for that: no plan leaves it waiting while such a set exists."""
    found = []
    for gang in case.waiting:
        if gang.ask.slice_mib or case.is_choosy(gang):
            continue
        charge = asked_charge(case.before, gang.ask)
        if not any(is_entitled(case.after, gang, level, charge) for level in range(len(gang.path))):
            continue
        candidates = owed(case, gang)
        if not candidates:
            continue

        def yields(holder: Gang, gang: Gang = gang, charge: Charge = charge) -> bool:
            """Promises of borrowers do not bind an owner."""
            level = parting(gang, holder)
            theirs = asked_charge(case.before, holder.ask)
            return is_entitled(case.after, gang, level, charge) and not is_entitled(case.after, holder, level, theirs)

        barred = case.barred(gang, yields, max(each.gang.ask.grace_ms for each in candidates))
        victims = legal_set(case.after, gang, candidates, case.book, barred)
        if victims is not None and not is_kept_for_another(case, gang, of_its_queue=True):
            names = ", ".join(told(leaver.gang) for leaver in victims) or "nobody"
            words = f"{told(gang)} is within its guarantee and waits, though it could start if these gave back: {names}"
            found.append(Violation("guarantee_served", words))
    return found


def owed(case: Case, gang: Gang) -> list[Leaver]:
    """Whom it may ask back. Who borrows only because of what this plan gave to its queue is asked by the next."""
    already = {each.gang.id for each in may_ask(case.start, gang) if each.right is Cause.RECLAIM}
    found = [each for each in may_ask(case.after, gang) if each.right is Cause.RECLAIM]
    return [each for each in found if each.gang.id in already]


# ---- order ---------------------------------------------------------------------------------------------------------


def order(case: Case) -> list[Violation]:
    """Nobody starts while another who goes before it, and could start instead, is left waiting. Level by level where
    the queues part: within the guarantee, then priority, then the smaller share; in a queue the user, then age."""
    found = []
    waiting = [gang for gang in case.waiting if not case.is_choosy(gang)]
    dropped = [decision.gang for decision, _ in case.moments if isinstance(decision, DropClaim)]
    for at, (decision, board) in enumerate(case.moments if waiting else ()):
        starter = case.before.gangs[decision.gang]
        if not isinstance(decision, Place | MakeRoom) or not starter.waits:
            continue
        if any(takes_over(case.start, starter, case.before.gangs[name]) for name in dropped):
            continue  # it has seats that were claimed for somebody else
        floor = None
        for gang in waiting:
            if starter.id in case.reserved or (case.is_overdue(starter) and starter.priority >= gang.priority):
                continue  # a promised start binds, and who has waited too long goes first within its priority
            why = goes_before(board, gang, starter)
            if why and not _was_barred(case, gang, at):
                floor = floor or Floor(board)
                starts = may_start(board, gang, case.book, floor, case.barred(gang))
                is_behind = is_sent_first(case, board, gang, starter) or _is_hidden(board, gang, starter)
                if starts and not is_behind and not is_kept_for_another(case, gang):
                    words = (
                        f"{told(starter)} was served and {told(gang)} was not, who could start and goes first: {why}"
                    )
                    found.append(Violation("order", words))
    return found


def _was_barred(case: Case, gang: Gang, at: int) -> bool:
    """Whether a start that was reserved before was in the way of a gang, and was moved, which the plan records, only
    by this decision or a later one."""
    served = {decision.gang: n for n, (decision, _) in enumerate(case.moments)}
    until = case.now_ms + gang.ask.hold_ms
    return any(
        each.gang != gang.id and served.get(each.by, -1) >= at and case.before.reserved_ms.get(each.gang, until) < until
        for each in case.plan.moved
    )


def goes_before(board: Board, gang: Gang, other: Gang) -> str:
    """Why one gang certainly goes before another, where their queues part; nothing if it does not, or not surely."""
    level = parting(gang, other)
    if (gang.ask.slice_mib or other.ask.slice_mib) and len({m.vram for m in board.facts.machines}) > 1:
        return ""  # what a slice is charged depends on where it sits
    owns = is_entitled(board, gang, level, asked_charge(board.facts, gang.ask))
    other_owns = is_entitled(board, other, level, asked_charge(board.facts, other.ask))
    if gang.queue == other.queue:
        return _within_a_queue(board, gang, other)
    if owns != other_owns:
        return "it is within its guarantee" if owns else ""
    if gang.priority != other.priority:
        return "its priority is higher" if gang.priority > other.priority else ""
    if level == len(gang.path) or level == len(other.path):
        return ""  # work of an inner queue beside the queues below it: their shares are not told apart
    mine, theirs = gang.path[level], other.path[level]
    if _share_at_most(board, gang, level) * MARGIN < share(board, theirs):
        return f"{mine} has had less of its share than {theirs}"
    return ""


def _share_at_most(board: Board, gang: Gang, level: int) -> float:
    """The share with which the queue at this level of its path sends a gang, if everybody else who waits below that
    queue, and is no less important, stood before it and found no seats: they count as if they had had as much."""
    queue, queues = gang.path[level], board.facts.queues
    plain = share(board, queue, _given_up(board, queue))
    others = [other for other in board.waiting() if other.priority >= gang.priority and queue in other.path]
    if level == len(gang.path) - 1:  # beside queues below it its own work is not told apart
        return plain if all(other.queue == queue for other in others) else inf
    sender, reached = gang.path[level + 1], _share_at_most(board, gang, level + 1)
    more = max(0.0, reached - share(board, sender)) * queues[sender].weight
    for child in queues[queue].children:
        if child != sender and any(child in other.path for other in others):
            more += max(0.0, reached - share(board, child)) * queues[child].weight
    if any(other.queue == queue for other in others):  # they count as one more child of weight 1
        more += reached
    return float(plain + more / queues[queue].weight)


def _within_a_queue(board: Board, gang: Gang, other: Gang) -> str:
    last = len(gang.path) - 1
    owns = is_entitled(board, gang, last, asked_charge(board.facts, gang.ask))
    other_owns = is_entitled(board, other, last, asked_charge(board.facts, other.ask))
    if gang.priority != other.priority:
        return "its priority is higher" if gang.priority > other.priority else ""
    if owns != other_owns:
        return ""
    if gang.user == other.user:
        is_first = _is_alike(gang, other) if gang.priority in board.facts.turns else True
        return "it is older" if gang.rank < other.rank and is_first else ""
    gone = _given_up(board, gang.queue)
    return "its user has had less" if user_share(board, gang, gone) * MARGIN < user_share(board, other) else ""


def _is_alike(gang: Gang, other: Gang) -> bool:
    """Where gangs take turns, how long they may still run decides before their age: the same is expected of these, and
    the first has waited no less."""
    is_new = not (gang.attempt or other.attempt)
    return is_new and gang.ask.shape == other.ask.shape and gang.ask.limit_ms == other.ask.limit_ms


def _given_up(board: Board, queue: str) -> Charge:
    """What gangs of a subtree gave up in this plan: it counts in the next one."""
    total: Charge = {}
    for name in board.leaving:
        gang = board.facts.gangs[name]
        if not gang.is_leaving and queue in gang.path:
            for dimension, amount in gang.charge.items():
                total[dimension] = total.get(dimension, 0) + amount
    return total


def is_sent_first(case: Case, board: Board, gang: Gang, starter: Gang) -> bool:
    """Whether a queue above both sent the starter, being within every guarantee from there down, before the gang, which
    is not: always if that is no more important, else only if others would come between."""
    mine, theirs = asked_charge(board.facts, gang.ask), asked_charge(board.facts, starter.ask)
    for level in range(parting(gang, starter)):
        if is_entitled(board, starter, level, theirs) and not is_entitled(board, gang, level, mine):
            if gang.priority <= starter.priority:
                return True
            beside = [other for other in board.waiting() if parting(other, starter) <= level]
            if any(_is_reserved_before(case, gang, other) or not goes_before(board, gang, other) for other in beside):
                return True
    return False


def _is_reserved_before(case: Case, gang: Gang, other: Gang) -> bool:
    """Whether another gang goes first because it has a reservation (docs/decisions/0024)."""
    return other.id in case.reserved and gang.id not in case.reserved and other.priority >= gang.priority


def _is_hidden(board: Board, gang: Gang, starter: Gang) -> bool:
    """Whether somebody of the same branch may stand before the gang there without standing before the starter: a branch
    sends its own first, and an inner guarantee goes before an inner priority."""
    level = parting(gang, starter)
    branch = gang.path[level] if level < len(gang.path) else None
    for other in board.waiting():
        if other.id in (gang.id, starter.id):
            continue
        same = branch in other.path if branch is not None else other.queue == gang.queue
        if same and not goes_before(board, gang, other) and not goes_before(board, other, starter):
            return True
    return False


# ---- work conservation ---------------------------------------------------------------------------------------------


def work_conserved(case: Case) -> list[Violation]:
    """No gang is left waiting that fits on what is free, is within every bound and would delay no promised start."""
    found = []
    for gang in case.waiting:
        if case.is_choosy(gang) or not may_start(case.after, gang, case.book, case.floor, case.barred(gang)):
            continue
        if is_kept_for_another(case, gang):
            continue
        words = f"{told(gang)} waits, though it fits on what is free, within every bound and delaying no promised start"
        found.append(Violation("work_conserved", words))
    return found


def is_kept_for_another(case: Case, gang: Gang, of_its_queue: bool = False) -> bool:
    """Whether the plan says that a part of a bound is kept for another who waits, and that bound, which the gang
    shares, does indeed not hold both before the gang would be gone (docs/decisions/0023). Nothing is kept of a budget.

    ``of_its_queue``: only others of the same queue count, as for who is within its guarantee."""
    until = case.now_ms + gang.ask.hold_ms
    for part in getattr(case.plan, "parts", ()):  # plans of before had none
        other = case.before.gangs.get(part.gang)
        if other is None or other.id == gang.id or other.id not in case.after.in_line or part.at_ms >= until:
            continue
        is_shared = part.queue in ("", *gang.path) and part.user in ("", gang.user)
        counts = is_shared and (other.queue == gang.queue or not of_its_queue)
        # what will be kept back then, when others have left, is not known now
        if counts and (not part.queue or not _hold_both(case, gang, other)):
            return True
    return False


def _hold_both(case: Case, gang: Gang, other: Gang) -> bool:
    """Whether the second may still be charged once the first is: by its bounds and, in one queue, its guarantee."""
    board = case.after.copy()
    board.set_charge(gang, asked_charge(case.before, gang.ask))
    wanted = asked_charge(case.before, other.ask).get(GPU, 0)
    own = case.before.queues[other.queue]
    if gang.queue == other.queue and wanted <= own.guarantee.get(GPU, 0) < board.used[own.name].get(GPU, 0) + wanted:
        return False
    sets = model_sets(case.before, other.ask)
    charges = [least_charge(case.before, other.ask, other.ask.smallest, models) for models in sets]
    return any(not any(bounds_broken(board, other, each, case.book, owners_too=True)) for each in charges)
