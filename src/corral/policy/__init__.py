"""What should happen (pure): a policy is a function from a snapshot to a plan. Composed of parts, found by name.

Names are imported when first used: a server only explains why gangs wait, and only its planner decides.
"""

# ruff: noqa: F401 - what is loaded is handed out by its name
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from corral.policy.backfill.backfill import CONSERVATIVE, EASY, GREEDY, STRICT, Backfill
    from corral.policy.backfill.calendar import TransientReservations
    from corral.policy.catalog import CATALOG, policy
    from corral.policy.cycle.order import Order
    from corral.policy.cycle.parts import Parts
    from corral.policy.cycle.standard import Standard
    from corral.policy.explain.advice import smallest_changes
    from corral.policy.explain.reasons import Hold, InTheWay, Reason
    from corral.policy.placement.scoring import best_fit
    from corral.policy.placement.seating import Bounds, Scorer, Seating, find_seats
    from corral.policy.preemption.preemptor import Preemption

__all__ = [
    "CATALOG",
    "CONSERVATIVE",
    "EASY",
    "GREEDY",
    "STRICT",
    "Backfill",
    "Bounds",
    "Hold",
    "InTheWay",
    "Order",
    "Parts",
    "Preemption",
    "Reason",
    "Scorer",
    "Seating",
    "Standard",
    "TransientReservations",
    "best_fit",
    "find_seats",
    "policy",
    "smallest_changes",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _offered()[name]


def _offered() -> dict[str, object]:
    from corral.policy.backfill.backfill import CONSERVATIVE, EASY, GREEDY, STRICT, Backfill
    from corral.policy.backfill.calendar import TransientReservations
    from corral.policy.catalog import CATALOG, policy
    from corral.policy.cycle.order import Order
    from corral.policy.cycle.parts import Parts
    from corral.policy.cycle.standard import Standard
    from corral.policy.explain.advice import smallest_changes
    from corral.policy.explain.reasons import Hold, InTheWay, Reason
    from corral.policy.placement.scoring import best_fit
    from corral.policy.placement.seating import Bounds, Scorer, Seating, find_seats
    from corral.policy.preemption.preemptor import Preemption

    return dict(locals())
