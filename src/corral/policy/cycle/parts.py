"""What a policy of the catalogue is made of, and when a plan of such parts certainly changes nothing."""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from corral.core.cluster.resources import Demand
from corral.core.cluster.slots import could_take
from corral.core.state import State
from corral.policy.backfill.backfill import EASY, Backfill
from corral.policy.cycle.order import Order
from corral.policy.placement.seating import Scorer
from corral.policy.preemption.preemptor import Preemption

LOOKED_OVER_MAX = 100  # more demands than this are not checked before a plan, but each in its turn


class Parts(Struct, frozen=True):
    """What a policy is made of."""

    order: Order
    backfill: Backfill = EASY
    preemption: Preemption | None = None
    scorer: Scorer | None = None
    patience_ms: int | None = None  # the oldest gang that has waited longer goes first within its priority
    grows: bool = False


def known_full(state: State, parts: Parts) -> set[Demand]:
    """Demands that did not fit when last tried, while nothing has become free since: they need not be tried again.
    A set to add to."""
    if not _all_start_who_fit(parts):
        return set()
    grown, found = state.memory.get("full", (-1, set()))
    if grown != state.capacity.grown:
        found = set()
        state.memory["full"] = (state.capacity.grown, found)
    return cast(set[Demand], found)


def _all_start_who_fit(parts: Parts) -> bool:
    """Whether later gangs may start before blocked ones, without reservations and preemption."""
    return not parts.backfill.depth and parts.backfill.may_pass and parts.preemption is None


def nothing_can_change(state: State, parts: Parts) -> bool:
    """Equivalent to a plan without decisions, for gangs that wait for what is known to be full."""
    is_at_rest = not (parts.grows or state.claimants or state.broken or state.draining)
    if not is_at_rest or not _all_start_who_fit(parts) or len(state.backlog.demands) > LOOKED_OVER_MAX:
        return False
    full, capacity = known_full(state, parts), state.capacity
    full.update([d for d in state.backlog.demands if d not in full and not could_take(capacity, d, d.smallest)])
    return all(demand in full for demand in state.backlog.demands)
