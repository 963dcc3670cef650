"""Estimates of a simulation are those of the engine: what ended of the nearest kind, never what a job will take."""

from __future__ import annotations

from corral.core.model import Settings
from corral.core.prediction import ENOUGH, kinds_of
from corral.core.state import State
from corral.sim.learning import Learner
from corral.sim.run import Arrival
from tests.sim.runs import HOUR, MINUTE, job


def learned(*lengths_ms: int, gpus: int = 1) -> Learner:
    """After jobs of one user and size have taken this long."""
    state, arrival = State(Settings()), job("past", 0, 1, gpus=gpus)
    for length in lengths_ms:
        state.predictions.add(kinds_of(arrival.spec.queue, arrival.user, 1000 * gpus, None, ""), length)
    return Learner(state)


def estimate(learner: Learner, arrival: Arrival) -> int | None:
    return learner.admit(arrival).estimate_ms


def test_nothing_is_said_before_enough_has_ended() -> None:
    assert estimate(learned(*[HOUR] * (ENOUGH - 1)), job("next", 0, 1)) is None
    assert estimate(learned(*[HOUR] * ENOUGH), job("next", 0, 1)) is not None


def test_the_length_of_the_job_itself_is_not_looked_at() -> None:
    learner = learned(*[HOUR] * ENOUGH)
    assert estimate(learner, job("short", 0, 1)) == estimate(learner, job("long", 0, 100 * HOUR))


def test_four_in_five_like_jobs_end_within_what_is_said() -> None:
    said = estimate(learned(*[(number + 1) * MINUTE for number in range(100)]), job("next", 0, 1)) or 0
    assert 80 * MINUTE <= said <= 110 * MINUTE
