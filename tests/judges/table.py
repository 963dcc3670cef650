"""All judges of a state and a plan, by name; and those that are not enforced yet, with the finding that they show."""

from __future__ import annotations

from tests.judges import bounds, continuity, preemption, starts
from tests.judges.case import Judge

JUDGES: dict[str, Judge] = {
    judge.__name__: judge
    for judge in (
        starts.guarantee_served,
        starts.order,
        starts.work_conserved,
        bounds.limits_kept,
        bounds.budget_kept,
        bounds.lend_kept,
        preemption.victims_legal,
        preemption.preemption_needed,
        preemption.preemption_minimal,
        preemption.preemption_useful,
        preemption.preemption_cheapest,
        preemption.priority_served,
        preemption.no_turn_in_vain,
        continuity.seats_valid,
        continuity.claims_used,
        continuity.drained,
        continuity.repaired,
        continuity.grows,
        continuity.grows_in_peace,
    )
}

#: Promises that are judged while a scenario is played (``trial``).
PLAN_MADE = "plan_made"  # a plan is always made
COMMITS = "commits_in_full"  # law 4: a plan made from the present commits in full
WHY = "why_is_true"  # reasons and advice for who waits
STABLE = "stable"  # planning again at once makes nobody leave

#: Judges that are not enforced on random scenarios yet, with what they still see.
NOT_ENFORCED: dict[str, str] = {
    "guarantee_served": "zz.209: what is kept of a loan for another queue binds a gang that would replace its own",
    "order": "zz.363, zz.526, zz.649: not looked into",
    "work_conserved": "zz.83, zz.618, zz.776: not looked into",
    "priority_served": "zz.193, zz.1606: not looked into",
    "preemption_cheapest": "order1.584: a limit of a model; zz.17, zz.429: not looked into",
    "preemption_minimal": "zz.935: not looked into; else as preemption_needed",
    "preemption_needed": "zz.988, zz.1487: a gang like it starts later in the plan, when a reservation has moved",
    "stable": "claims that are used before a more important gang has its turn; owners that go before such a gang",
}
