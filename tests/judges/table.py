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
    "guarantee_served": "zz.55, zz.269: CPUs that others keep; zz.426: reservations",
    "work_conserved": "zz.939: a part of a limit, for gangs of different grace",
    "priority_served": "zz.269, zz.336, zz.435: seats that a later gang's victims leave over",
    "preemption_minimal": "zz.793: not looked into",
    "stable": "zz.410, zz.475: an owner behind a borrower of its own queue that has a reservation; zz.114: slices",
}
