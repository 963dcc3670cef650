"""Judges of what may be had: limits by queue, user and model, budgets, what is not lent."""

from __future__ import annotations

from collections.abc import Iterator

from corral.core.plan import Grow, MakeRoom, Place
from tests.judges.case import Case, Violation, told
from tests.judges.facts import Charge, Gang
from tests.judges.occupancy import Board
from tests.judges.queue_rules import not_lent, over_budget


def _newly_charged(case: Case) -> Iterator[tuple[Gang, Board, Charge, Board]]:
    """Every gang that is charged more by a decision: with the board before it, what it is charged then, and after."""
    for at, (decision, board) in enumerate(case.moments):
        if isinstance(decision, Place | MakeRoom | Grow):
            gang = case.before.gangs[decision.gang]
            later = case.moments[at + 1][1] if at + 1 < len(case.moments) else case.after
            charge = later.charges.get(gang.id, {})
            if charge and charge != board.charges.get(gang.id, {}):
                yield gang, board, charge, later


def limits_kept(case: Case) -> list[Violation]:
    """No queue and no user is given more than a limit, by amount or by GPU model."""
    found = []
    for gang, before, _, after in _newly_charged(case):
        for name in gang.path:
            for dimension, limit in case.before.queues[name].limit.items():
                used = after.used[name].get(dimension, 0)
                if used > limit and used > before.used[name].get(dimension, 0):
                    words = f"{told(gang)} takes {name} to {used} {dimension}, its limit is {limit}"
                    found.append(Violation("limits_kept", words))
        key = (gang.queue, gang.user)
        for dimension, limit in case.before.queues[gang.queue].user_limit.items():
            used = after.user_used[key].get(dimension, 0)
            if used > limit and used > before.user_used.get(key, {}).get(dimension, 0):
                words = f"{told(gang)} takes {gang.user} to {used} {dimension}, the limit of a user is {limit}"
                found.append(Violation("limits_kept", words))
    return found


def budget_kept(case: Case) -> list[Violation]:
    """No queue starts more than its budget has left in this window, by the judges' own account of what was held: as it
    is when those have left who make room."""
    found = []
    for gang, before, charge, after in _newly_charged(case):
        if gang.id in before.charges:
            continue  # it goes on, larger or smaller
        over = over_budget(after, gang, charge, case.book, is_sure=True)
        found += [Violation("budget_kept", f"{told(gang)} is served against the {words}") for words in over]
    return found


def lend_kept(case: Case) -> list[Violation]:
    """What a queue does not lend stays free for it, whatever its depth and wherever the other comes from."""
    found = []
    for gang, before, charge, after in _newly_charged(case):
        if gang.id in before.charges:
            continue
        left = after.copy()
        left.set_charge(gang, {})  # as it is when those have left who make room for it
        kept = not_lent(left, gang, charge)
        found += [Violation("lend_kept", f"{told(gang)} is served with what is {words}") for words in kept]
    return found
