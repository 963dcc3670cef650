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
    "guarantee_served": "r.127: a reservation of a gang that was within its guarantee when it was made",
    "priority_served": "q.2: CPUs and memory that a later gang's victims leave over",
    "stable": "q.998: an owner hidden behind a gang with a reservation; q.724: budgets; q.848: reservations",
    "work_conserved": "r.415: not looked into",
}
