"""What should happen (pure): a policy is a function from a snapshot to a plan. Composed of parts, found by name."""

from corral.policy.advice import smallest_changes
from corral.policy.backfill.calendar import Calendar
from corral.policy.backfill.rules import CONSERVATIVE, EASY, GREEDY, STRICT, Backfill
from corral.policy.catalog import CATALOG, policy
from corral.policy.order import Order
from corral.policy.placement import Bounds, Scorer, Seating, find_seats
from corral.policy.preemption import Preemption
from corral.policy.reasons import Hold, InTheWay, Reason
from corral.policy.repack.policy import Repack
from corral.policy.scoring import LeastFragmentation, best_fit
from corral.policy.standard import Parts, Standard

__all__ = [
    "CATALOG",
    "CONSERVATIVE",
    "EASY",
    "GREEDY",
    "STRICT",
    "Backfill",
    "Bounds",
    "Calendar",
    "Hold",
    "InTheWay",
    "LeastFragmentation",
    "Order",
    "Parts",
    "Preemption",
    "Reason",
    "Repack",
    "Scorer",
    "Seating",
    "Standard",
    "best_fit",
    "find_seats",
    "policy",
    "smallest_changes",
]
