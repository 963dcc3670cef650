"""Whether a plan leaves nothing to correct: what is planned again at once makes nobody leave who could be asked before.

It may start a gang that a promise made in the first plan, before others had their turn, kept waiting. It may also make
gangs leave whose queue borrows only because of what the first plan gave to it: who fits starts, and an owner asks the
next plan to take back what is borrowed.
"""

from __future__ import annotations

from corral.core.model import Cause
from corral.core.plan import DropClaim, Evict, MakeRoom, Place, Plan, Repair, Victim
from tests.judges.case import Case
from tests.judges.facts import Gang
from tests.judges.queue_rules import asked_charge
from tests.judges.starts import is_sent_first
from tests.judges.victims import right


def unstable(case: Case, again: Plan) -> list[str]:
    """``again``: what is planned once the plan of the case is carried out, at the same moment."""
    found = []
    for decision in again.decisions:
        if isinstance(decision, Evict | DropClaim):
            found.append(f"planning again at once makes somebody leave: {decision}")
        if isinstance(decision, MakeRoom) and decision.victims:
            gang = case.before.gangs[decision.gang]
            if all(_could_be_asked(case, gang, victim) for victim in decision.victims):
                found.append(f"planning again at once makes somebody leave: {decision}")
    return found


def _could_be_asked(case: Case, gang: Gang, victim: Victim) -> bool:
    """Whether there was a right against a gang when the plan began or, if it sat down in it, at that moment.

    A gang that lost tasks goes on first, so that it can save its work when it has to leave. An owner that a queue sends
    because others would come between goes before a more important gang of the queue. Whose turn is over where time is
    shared depends on who waits."""
    other, board = case.before.gangs[victim.gang], case.start
    if victim.cause is Cause.TIME_SHARE:
        return False
    for at, (decision, before) in enumerate(case.moments):
        if decision.gang == other.id and isinstance(decision, Repair):
            return False
        if decision.gang == other.id and isinstance(decision, Place):
            if is_sent_first(case, before, gang, other):
                return False
            board = case.moments[at + 1][1] if at + 1 < len(case.moments) else case.after
    return right(board, gang, other, asked_charge(case.before, gang.ask)) is not None
