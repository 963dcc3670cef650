"""A large training run on nodes that fail: simulated by the engine, it comes to what the formula expects."""

import pytest
from msgspec.structs import replace

from corral.cli.sim.training import advised_ms, expected_ppm
from corral.sim.training_run import TrainingOutcome, TrainingRun, train

SMALL = TrainingRun(gpus=256, days=20, spares=4, free=8, failures=200.0, nodes_a_rack=8)
SMALL = replace(SMALL, interval_ms=advised_ms(SMALL))


def trained(run: TrainingRun) -> TrainingOutcome:
    found = train(run)
    assert isinstance(found, TrainingOutcome)
    assert sum(found.ms.values()) == run.days * 86_400_000
    return found


@pytest.fixture(scope="module")
def usual() -> TrainingOutcome:
    return trained(SMALL)


def test_the_simulation_agrees_with_the_formula(usual: TrainingOutcome):
    assert usual.failures > 80
    assert usual.ratio_ppm == pytest.approx(expected_ppm(SMALL), abs=5_000)


def test_the_advised_interval_is_better_than_shorter_and_longer_ones(usual: TrainingOutcome):
    for factor in (0.2, 8.0):
        other = trained(replace(SMALL, interval_ms=round(usual.interval_ms * factor)))
        assert other.ratio_ppm < usual.ratio_ppm


def test_without_spares_restarts_cost_more(usual: TrainingOutcome):
    cold = trained(replace(SMALL, spares=0, free=12))
    assert cold.ms["repair"] > usual.ms["repair"]


def test_spares_that_were_used_are_replaced(usual: TrainingOutcome):
    """Otherwise only the first four of the restarts would be short."""
    mean_ms = usual.ms["repair"] / usual.failures
    assert mean_ms < (SMALL.standby_ms + SMALL.restart_ms) / 2


def test_racks_that_fail_together_and_nodes_that_fail_often():
    found = trained(replace(SMALL, rack_hours=500.0, lemon_tail=1.2, spares=16, free=16))
    assert found.failures > found.attempts > 20  # several nodes at once
    assert found.ratio_ppm > 900_000
