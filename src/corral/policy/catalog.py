"""Policies by name. Each is composed of the same parts; this table is the whole difference between them."""

from __future__ import annotations

from collections.abc import Callable

from corral.core.cluster.resources import TaskDemand
from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.policy.backfill.backfill import CONSERVATIVE, EASY, GREEDY, STRICT, Backfill
from corral.policy.cycle.order import ByArrival, ByLength, ByPriority, ByPriorityAndShare, ByShare
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Standard
from corral.policy.placement.scoring import FragmentationDescent, PublishedBestFit, Remembered
from corral.policy.placement.seating import Scorer
from corral.policy.preemption.preemptor import Preemption
from corral.policy.repack.policy import Repack
from corral.policy.repack.ranks import ByAttainedService, Change, Rank, by_remaining_service, by_remaining_time

HOUR_MS = 3_600_000

LEAST_SERVED, LEAST_SERVED_BY_TIME = ByAttainedService(), ByAttainedService(by_time=True)

Make = Callable[[Backfill | None, Scorer | None], Policy]


def _walk(parts: Parts) -> Make:
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


def _repack(rank: Rank, moves: bool = False, change: Change | None = None) -> Make:
    def make(backfill: Backfill | None, scorer: Scorer | None) -> Policy:
        return Repack(rank, Parts(ByArrival(), backfill or GREEDY, None, scorer), moves, change)

    return make


def _scored(make_scorer: Callable[[], Scorer]) -> Make:
    """In order of arrival, each to the node that scores highest."""

    def make(backfill: Backfill | None, scorer: Scorer | None) -> Policy:
        return _walk(Parts(ByArrival(), GREEDY))(backfill, scorer or make_scorer())

    return make


#: What ``fgd`` expects by default: tasks of 1, 2, 4 and 8 GPUs, equally often.
SIZES_ALIKE = tuple((TaskDemand(gpus=gpus), 1) for gpus in (1, 2, 4, 8))

CATALOG: dict[str, Make] = {
    "fifo": _walk(Parts(ByArrival(), GREEDY)),
    "strict_fifo": _walk(Parts(ByArrival(), STRICT)),
    "conservative": _walk(Parts(ByArrival(), CONSERVATIVE)),
    "priority": _walk(Parts(ByPriority(), EASY, Preemption())),
    "fair": _walk(Parts(ByShare(), EASY)),
    "sjf": _walk(Parts(ByLength(), GREEDY)),
    "srtf": _repack(by_remaining_time),
    "srsf": _repack(by_remaining_service),
    "srtf_moving": _repack(by_remaining_time, moves=True),
    "srsf_moving": _repack(by_remaining_service, moves=True),
    "las": _repack(LEAST_SERVED, change=LEAST_SERVED.change_ms),
    "las_by_time": _repack(LEAST_SERVED_BY_TIME, change=LEAST_SERVED_BY_TIME.change_ms),
    "best_fit": _scored(lambda: Remembered(PublishedBestFit())),
    "fgd": _scored(lambda: Remembered(FragmentationDescent(SIZES_ALIKE))),
    "standard": _walk(Parts(ByPriorityAndShare(), EASY, Preemption(), patience_ms=24 * HOUR_MS, grows=True)),
}


def policy(name: str, backfill: Backfill | None = None, scorer: Scorer | None = None) -> Policy | Refusal:
    """The policy of that name, with another backfill or node score if given."""
    make = CATALOG.get(name)
    if make is None:
        return Refusal("no_such_policy", f"there is no policy {name!r}", f"policies: {', '.join(CATALOG)}")
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
