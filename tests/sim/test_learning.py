"""Estimates that are learned: from what ended, of the nearest kind, and never from what a job will really take."""

from __future__ import annotations

from corral.core import events as e
from corral.core.model import GangState
from corral.sim.learning import ENOUGH, REMEMBERED, Learner
from corral.sim.run import Arrival
from tests.sim.runs import HOUR, MINUTE, job


def lived(learner: Learner, arrival: Arrival, ran_ms: int, ending: GangState = GangState.SUCCEEDED) -> None:
    """A job comes, starts at once and ends after this long."""
    learner.admit(arrival)
    gang = f"{arrival.id}/main"
    learner([e.GangStarted(0, gang, 1), e.GangStopped(ran_ms, gang, 1), e.GangFinished(ran_ms, gang, 1, ending)])


def estimate(learner: Learner, arrival: Arrival) -> int | None:
    return learner.admit(arrival).estimate_ms


def test_nothing_is_said_before_enough_has_ended() -> None:
    learner = Learner()
    for number in range(ENOUGH - 1):
        lived(learner, job(f"j{number}", 0, 1), HOUR)
    assert estimate(learner, job("next", 0, 1)) is None
    lived(learner, job("one-more", 0, 1), HOUR)
    assert HOUR <= (estimate(learner, job("next", 0, 1)) or 0) <= HOUR * 5 // 4


def test_the_length_of_the_job_itself_is_not_looked_at() -> None:
    learner = Learner()
    for number in range(ENOUGH):
        lived(learner, job(f"j{number}", 0, 1), HOUR)
    assert estimate(learner, job("short", 0, 1)) == estimate(learner, job("long", 0, 100 * HOUR))


def test_four_in_five_like_jobs_end_within_what_is_said() -> None:
    learner = Learner()
    for number in range(100):
        lived(learner, job(f"j{number}", 0, 1), (number + 1) * MINUTE)
    said = estimate(learner, job("next", 0, 1)) or 0
    assert 80 * MINUTE <= said <= 100 * MINUTE


def test_jobs_of_one_size_are_looked_at_when_the_user_has_none() -> None:
    learner = Learner()
    for number in range(ENOUGH):
        lived(learner, job(f"j{number}", 0, 1, gpus=4), HOUR)
    stranger = job("x", 0, 1, gpus=4)
    other_size = job("y", 0, 1, gpus=2)
    assert estimate(learner, Arrival("x", 0, stranger.spec, "bob", 1)) is not None
    assert estimate(learner, other_size) is None


def test_what_failed_teaches_nothing() -> None:
    learner = Learner()
    for number in range(ENOUGH):
        lived(learner, job(f"j{number}", 0, 1), MINUTE, GangState.FAILED)
    assert estimate(learner, job("next", 0, 1)) is None


def test_time_before_a_preemption_and_before_a_repair_counts() -> None:
    learner = Learner()
    for number in range(ENOUGH):
        learner.admit(job(f"j{number}", 0, 1))
        gang = f"j{number}/main"
        learner([e.GangStarted(0, gang, 1), e.GangStopped(HOUR, gang, 1)])
        learner(
            [e.GangStarted(5 * HOUR, gang, 2), e.GangRepaired(6 * HOUR, gang, 3, ()), e.GangStarted(6 * HOUR, gang, 3)]
        )
        learner([e.GangStopped(7 * HOUR, gang, 3), e.GangFinished(7 * HOUR, gang, 3, GangState.SUCCEEDED)])
    said = estimate(learner, job("next", 0, 1)) or 0
    assert 3 * HOUR <= said <= 3 * HOUR * 5 // 4


def test_only_the_latest_are_remembered() -> None:
    learner = Learner()
    for number in range(REMEMBERED):
        lived(learner, job(f"old{number}", 0, 1), 10 * HOUR)
    for number in range(REMEMBERED):
        lived(learner, job(f"new{number}", 0, 1), HOUR)
    assert (estimate(learner, job("next", 0, 1)) or 0) <= HOUR * 5 // 4
