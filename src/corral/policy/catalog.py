"""Policies by name. Each is composed of the same parts; this table is the whole difference between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.policy.backfill.backfill import CONSERVATIVE, EASY, GREEDY, STRICT, Backfill
from corral.policy.cycle.order import ByArrival, ByLength, ByPriority, ByPriorityAndShare, ByShare
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Standard
from corral.policy.placement.seating import Scorer
from corral.policy.preemption.preemptor import Preemption

HOUR_MS = 3_600_000

Make = Callable[[Backfill | None, Scorer | None], Policy]


def walk(parts: Parts) -> Make:
    def make(backfill: Backfill | None, scorer: Scorer | None) -> Policy:
        return Standard(
            Parts(
                parts.order,
                backfill if backfill is not None else parts.backfill,
                parts.preemption,
                scorer if scorer is not None else parts.scorer,
                parts.patience_ms,
                parts.grows,
            )
        )

    return make


CATALOG: dict[str, Make] = {
    "fifo": walk(Parts(ByArrival(), GREEDY)),
    "strict_fifo": walk(Parts(ByArrival(), STRICT)),
    "conservative": walk(Parts(ByArrival(), CONSERVATIVE)),
    "priority": walk(Parts(ByPriority(), EASY, Preemption())),
    "fair": walk(Parts(ByShare(), EASY)),
    "sjf": walk(Parts(ByLength(), GREEDY)),
    "standard": walk(Parts(ByPriorityAndShare(), EASY, Preemption(), patience_ms=24 * HOUR_MS, grows=True)),
}


#: Policies of publications, and the module whose ``PUBLISHED`` has them: nothing here imports it.
PUBLISHED_NAMES = ("srtf", "srsf", "srtf_moving", "srsf_moving", "las", "las_by_time", "best_fit", "fgd")
PUBLISHED_MODULE = "corral.sim.research.published"


def policy(
    name: str, backfill: Backfill | None = None, scorer: Scorer | None = None, catalog: Mapping[str, Make] = CATALOG
) -> Policy | Refusal:
    """The policy of that name, with another backfill or node score if given."""
    make = catalog.get(name)
    if make is None:
        return Refusal("no_such_policy", f"there is no policy {name!r}", f"policies: {', '.join(catalog)}")
    return make(backfill, scorer)


def standard(
    *,
    depth: int = 1,
    patience_ms: int | None = 24 * HOUR_MS,
    scorer: Scorer | None = None,
    grows: bool = True,
) -> Policy:
    """The default policy with its settings."""
    return Standard(
        Parts(
            ByPriorityAndShare(),
            Backfill(depth=depth),
            Preemption(),
            scorer,
            patience_ms=patience_ms,
            grows=grows,
        )
    )
