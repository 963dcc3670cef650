"""Policies of publications by name, beside those of ``policy.catalog``: for comparison, or where preemption is cheap.

The simulator offers them all. A server that is configured with one loads this module by its name
(``PUBLISHED_MODULE``), in its planner; nothing else of a server imports the simulator.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.core.cluster.resources import TaskDemand
from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.policy import catalog
from corral.policy.backfill.backfill import GREEDY, Backfill
from corral.policy.catalog import Make, walk
from corral.policy.cycle.order import ByArrival
from corral.policy.cycle.parts import Parts
from corral.policy.placement.scoring import Remembered
from corral.policy.placement.seating import Scorer
from corral.sim.research.repack.policy import Repack
from corral.sim.research.repack.ranks import (
    ByAttainedService,
    Change,
    Rank,
    by_remaining_service,
    by_remaining_time,
)
from corral.sim.research.scorers import FragmentationDescent, PublishedBestFit

LEAST_SERVED, LEAST_SERVED_BY_TIME = ByAttainedService(), ByAttainedService(by_time=True)


def _repack(rank: Rank, moves: bool = False, change: Change | None = None) -> Make:
    def make(backfill: Backfill | None, scorer: Scorer | None) -> Policy:
        return Repack(rank, Parts(ByArrival(), backfill or GREEDY, None, scorer), moves, change)

    return make


def _scored(make_scorer: Callable[[], Scorer]) -> Make:
    """In order of arrival, each to the node that scores highest."""

    def make(backfill: Backfill | None, scorer: Scorer | None) -> Policy:
        return walk(Parts(ByArrival(), GREEDY))(backfill, scorer or make_scorer())

    return make


#: What ``fgd`` expects by default: tasks of 1, 2, 4 and 8 GPUs, equally often.
SIZES_ALIKE = tuple((TaskDemand(gpus=gpus), 1) for gpus in (1, 2, 4, 8))

PUBLISHED: dict[str, Make] = {
    "srtf": _repack(by_remaining_time),
    "srsf": _repack(by_remaining_service),
    "srtf_moving": _repack(by_remaining_time, moves=True),
    "srsf_moving": _repack(by_remaining_service, moves=True),
    "las": _repack(LEAST_SERVED, change=LEAST_SERVED.change_ms),
    "las_by_time": _repack(LEAST_SERVED_BY_TIME, change=LEAST_SERVED_BY_TIME.change_ms),
    "best_fit": _scored(lambda: Remembered(PublishedBestFit())),
    "fgd": _scored(lambda: Remembered(FragmentationDescent(SIZES_ALIKE))),
}

#: Every policy that there is.
POLICIES: dict[str, Make] = catalog.CATALOG | PUBLISHED


def policy(name: str, backfill: Backfill | None = None, scorer: Scorer | None = None) -> Policy | Refusal:
    """The policy of that name, published or not, with another backfill or node score if given."""
    return catalog.policy(name, backfill, scorer, POLICIES)
