"""Faults: drawn from a seed, the same for everyone; reports that are lost or doubled change nothing but time."""

from __future__ import annotations

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.model import Health
from corral.sim.faults import HOUR_MS, FaultRates, Network, fault_rates_faults, mishaps
from corral.sim.world import Costs
from tests.sim.runs import HOUR, MINUTE, SECOND, Told, cluster, job

YEAR_MS = 365 * 24 * HOUR_MS


def test_what_never_breaks_never_breaks() -> None:
    assert mishaps(cluster("4x8"), FaultRates(), 0, YEAR_MS) == []


def test_the_same_seed_gives_the_same_misfortunes_and_another_gives_others() -> None:
    rates = FaultRates(node_hours=500, gpu_hours=5_000)
    again = mishaps(cluster("4x8"), rates, 0, YEAR_MS)
    assert mishaps(cluster("4x8"), rates, 0, YEAR_MS) == again
    assert mishaps(cluster("4x8"), FaultRates(node_hours=500, gpu_hours=5_000, seed=2), 0, YEAR_MS) != again


def test_one_more_machine_changes_nothing_for_the_others() -> None:
    rates = FaultRates(node_hours=500)
    few, more = (mishaps(cluster(text), rates, 0, YEAR_MS) for text in ("4x8", "5x8"))
    assert [each for each in more if getattr(each[1], "node", "") != "n4"] == few


def test_misfortunes_are_in_order_and_every_loss_is_followed_by_a_return() -> None:
    found = mishaps(cluster("3x8"), FaultRates(node_hours=100, node_repair_hours=5, gpu_hours=900), 0, YEAR_MS)
    assert [when for when, _ in found] == sorted(when for when, _ in found)
    down: dict[str, bool] = {}
    for _, fact in found:
        if isinstance(fact, f.NodeGone | f.NodeBack):
            assert down.get(fact.node, False) is isinstance(fact, f.NodeBack)
            down[fact.node] = isinstance(fact, f.NodeGone)
    failed = [fact for _, fact in found if isinstance(fact, f.GpuObserved) and fact.health is Health.FAILED]
    mended = [fact for _, fact in found if isinstance(fact, f.GpuObserved) and fact.health is Health.HEALTHY]
    assert len(failed) == len(mended) > 0


def test_as_many_break_as_the_rates_say() -> None:
    found = mishaps(cluster("20x8"), FaultRates(node_hours=240, node_repair_hours=0.01), 0, YEAR_MS)
    losses = sum(isinstance(fact, f.NodeGone) for _, fact in found)
    assert 600 < losses < 860  # 20 nodes, a year, one loss in ten days: 730


@pytest.mark.parametrize(
    ("rates", "field"),
    [
        (FaultRates(node_hours=-1), "node_hours"),
        (FaultRates(gpu_repair_hours=-1), "gpu_repair_hours"),
        (FaultRates(lost_reports=1), "lost_reports"),
        (FaultRates(lost_reports=-0.1), "lost_reports"),
    ],
)
def test_rates_that_cannot_be_are_reported(rates: FaultRates, field: str) -> None:
    assert [fault.field for fault in fault_rates_faults(rates)] == [field]


# --- reports --------------------------------------------------------------------------------------------------------


def test_a_lost_report_is_made_again_until_it_is_received() -> None:
    network = Network(FaultRates(lost_reports=0.5, report_again_ms=10_000))
    heard = [network.delivery_times(1_000) for _ in range(1_000)]
    late = sum(times[0] > 1_000 for times in heard)
    doubled = sum(len(times) == 2 for times in heard)
    assert 430 < late < 570
    assert 430 < doubled < 570
    assert all((times[0] - 1_000) % 10_000 == 0 for times in heard)


def ends(told: Told) -> dict[str, int]:
    return {end.job: end.at_ms for end in told.of(e.JobEnded)}


def test_doubled_reports_change_nothing() -> None:
    arrivals = [
        job("low", SECOND, 2 * HOUR),
        job("high", HOUR, HOUR // 2, priority=5),
        job("late", HOUR + MINUTE, HOUR),
    ]
    costs = Costs(start_ms=5 * SECOND, restart_ms=9 * SECOND, save_ms=3 * SECOND, checkpoint_every_ms=10 * MINUTE)
    plain = Told(arrivals, costs=costs)
    doubled = Told(arrivals, costs=costs, carry=lambda when_ms: [when_ms, when_ms + 7 * SECOND])
    assert doubled.events == plain.events


def test_lost_reports_make_runs_later_and_lose_no_job() -> None:
    arrivals = [job(f"j{n}", SECOND + n * MINUTE, HOUR, gpus=4, priority=n % 3) for n in range(20)]
    costs = Costs(start_ms=5 * SECOND, restart_ms=9 * SECOND, save_ms=3 * SECOND, checkpoint_every_ms=10 * MINUTE)
    network = Network(FaultRates(lost_reports=0.3))
    told = Told(arrivals, costs=costs, carry=network.delivery_times)
    assert len(ends(told)) == 20
    assert all(end.succeeded for end in told.of(e.JobEnded))
    assert max(ends(told).values()) > max(ends(Told(arrivals, costs=costs)).values())


def test_marks_of_periodic_checkpoints_do_not_multiply() -> None:
    costs = Costs(checkpoint_every_ms=MINUTE)
    told = Told([job("a", SECOND, 10 * HOUR)], costs=costs, carry=Network(FaultRates(lost_reports=0.2)).delivery_times)
    assert len(told.of(e.CheckpointCommitted)) <= 10 * 60
