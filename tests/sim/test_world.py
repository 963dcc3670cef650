"""What effects lead to, by hand: every expected time is the sum of the lengths that the test states."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.model import FailureClass, GangState, Health
from corral.sim.world import Costs
from tests.sim.runs import HOUR, MINUTE, SECOND, Told, cluster, job

T0 = 1_000  # the engine takes a start at 0 for none
COSTS = Costs(start_ms=30 * SECOND, restart_ms=MINUTE, save_ms=15 * SECOND, stop_ms=2 * SECOND)


def disturbed(costs: Costs, **low: Any) -> Told:
    """A job of two hours that is preempted after one for a job of half an hour."""
    return Told(
        [
            job("low", T0, 2 * HOUR, **low),
            job("high", T0 + costs.start_ms + HOUR, HOUR // 2, priority=5),
        ],
        costs=costs,
    )


def test_a_job_alone_takes_its_start_and_its_work() -> None:
    told = Told([job("a", T0, HOUR)], costs=COSTS)
    (started,) = told.of(e.GangStarted)
    assert started.at_ms == T0 + 30 * SECOND
    assert told.ended_ms("a") == T0 + 30 * SECOND + HOUR


def test_a_preempted_job_saves_leaves_and_pays_one_restart() -> None:
    told = disturbed(COSTS)
    leaves = T0 + HOUR + 30 * SECOND + 15 * SECOND + 2 * SECOND
    high_ends = leaves + 30 * SECOND + HOUR // 2
    assert told.of(e.GangStopped, "low")[0].at_ms == leaves
    assert told.ended_ms("high") == high_ends
    assert told.ended_ms("low") == high_ends + MINUTE + HOUR


def test_writing_a_checkpoint_is_not_work() -> None:
    quick = disturbed(Costs(save_ms=1))
    slow = disturbed(Costs(save_ms=20 * SECOND))
    assert slow.ended_ms("low") - quick.ended_ms("low") == 20 * SECOND - 1


@pytest.mark.parametrize("save_ms", [0, 1, 15 * SECOND])
def test_a_job_saves_once_when_it_is_evicted(save_ms: int) -> None:
    told = disturbed(Costs(save_ms=save_ms, stop_ms=2 * SECOND))
    assert len(told.of(e.CheckpointCommitted, "low")) == 1
    assert told.ended_ms("low") == T0 + 2 * HOUR + HOUR // 2 + save_ms + 2 * SECOND


def test_a_job_that_does_not_save_begins_again() -> None:
    told = disturbed(Costs(saves=False))
    assert not told.of(e.CheckpointCommitted)
    assert told.ended_ms("low") == T0 + HOUR + HOUR // 2 + 2 * HOUR
    assert told.of(e.GangStopped, "low")[0].lost_gpu_ms == 8 * HOUR


def test_a_checkpoint_that_is_not_written_within_the_grace_is_none() -> None:
    told = disturbed(Costs(save_ms=31 * SECOND), grace_ms=30 * SECOND)
    assert not told.of(e.CheckpointCommitted)
    assert told.ended_ms("low") == T0 + HOUR + 30 * SECOND + HOUR // 2 + 2 * HOUR


def test_a_job_that_is_evicted_before_it_is_up_saves_nothing_and_starts_again() -> None:
    told = Told(
        [job("low", T0, HOUR), job("high", T0 + 10 * SECOND, MINUTE, priority=5)],
        costs=COSTS,
    )
    left = T0 + 10 * SECOND + 2 * SECOND
    assert not told.of(e.CheckpointCommitted)
    assert told.ended_ms("low") == left + 30 * SECOND + MINUTE + 30 * SECOND + HOUR


def test_what_a_job_does_between_the_warning_and_the_last_word_is_its_end_if_it_gets_there() -> None:
    told = Told(
        [job("low", T0, HOUR), job("high", T0 + HOUR - 5 * SECOND, MINUTE, priority=5)], costs=Costs(save_ms=15_000)
    )
    assert told.ended_ms("low") == T0 + HOUR
    assert [end.state for end in told.of(e.GangFinished, "low")] == [GangState.SUCCEEDED]


# --- periodic checkpoints and lost nodes --------------------------------------------------------------------------

LOST_MS, BACK_MS = T0 + HOUR, T0 + HOUR + 10 * MINUTE
A_NODE_IS_LOST = ((LOST_MS, f.NodeGone("n0")), (BACK_MS, f.NodeBack("n0")))


def test_a_lost_node_costs_the_work_since_the_last_checkpoint() -> None:
    costs = Costs(start_ms=30 * SECOND, restart_ms=MINUTE, checkpoint_every_ms=25 * MINUTE)
    told = Told([job("a", T0, 2 * HOUR)], costs=costs, mishaps=A_NODE_IS_LOST)
    saves = [save.at_ms for save in told.of(e.CheckpointCommitted) if save.at_ms < LOST_MS]
    assert saves == [T0 + 30 * SECOND + 25 * MINUTE, T0 + 30 * SECOND + 50 * MINUTE]
    assert told.ended_ms("a") == BACK_MS + MINUTE + 2 * HOUR - 50 * MINUTE


def test_a_lost_node_costs_everything_where_nothing_was_saved() -> None:
    told = Told([job("a", T0, 2 * HOUR)], costs=Costs(save_ms=SECOND), mishaps=A_NODE_IS_LOST)
    assert not told.of(e.CheckpointCommitted)
    assert told.ended_ms("a") == BACK_MS + 2 * HOUR


def test_a_gang_that_lost_one_of_two_nodes_cannot_save() -> None:
    told = Told([job("a", T0, 2 * HOUR, tasks=2)], cluster("2x8"), costs=Costs(save_ms=SECOND), mishaps=A_NODE_IS_LOST)
    assert not told.of(e.CheckpointCommitted)
    assert told.ended_ms("a") == BACK_MS + 2 * HOUR


def test_a_gang_is_repaired_on_a_free_node_and_goes_on_from_its_checkpoint() -> None:
    costs = Costs(restart_ms=MINUTE, checkpoint_every_ms=50 * MINUTE)
    told = Told([job("a", T0, 2 * HOUR, tasks=2)], cluster("3x8"), "standard", costs=costs, mishaps=A_NODE_IS_LOST)
    (repair,) = told.of(e.GangRepaired)
    assert repair.at_ms == LOST_MS
    assert told.ended_ms("a") == LOST_MS + MINUTE + 2 * HOUR - 50 * MINUTE


def test_a_gang_on_a_failed_gpu_cannot_save() -> None:
    broken = (LOST_MS, f.GpuObserved("n0", 3, Health.FAILED))
    told = Told([job("a", T0, 2 * HOUR, gpus=4)], costs=Costs(save_ms=SECOND), mishaps=[broken])
    assert not told.of(e.CheckpointCommitted)
    assert [stop.failure for stop in told.of(e.GangStopped)] == [FailureClass.GPU_FAULT, None]


def test_periodic_checkpoints_cost_no_time() -> None:
    told = Told([job("a", T0, 2 * HOUR)], costs=Costs(checkpoint_every_ms=10 * MINUTE))
    assert len(told.of(e.CheckpointCommitted)) == 12 - 1  # the last would fall on the end, which comes first
    assert told.ended_ms("a") == T0 + 2 * HOUR


# --- endings --------------------------------------------------------------------------------------------------------


def test_a_job_that_fails_ends_failed() -> None:
    told = Told([job("a", T0, HOUR, exit_code=3)])
    (end,) = told.of(e.GangFinished)
    assert (end.state, end.failure, end.at_ms) == (GangState.FAILED, FailureClass.USER_ERROR, T0 + HOUR)


def test_speed_stretches_the_work_and_not_the_start() -> None:
    told = Told([job("a", T0, HOUR)], costs=COSTS, speed=lambda *_: 500)
    assert told.ended_ms("a") == T0 + 30 * SECOND + 2 * HOUR


def test_work_is_kept_at_the_speed_it_was_done_at() -> None:
    speeds = iter((500, 1000, 1000))  # low, high, low again
    told = Told(
        [job("low", T0, 2 * HOUR), job("high", T0 + HOUR, HOUR, priority=5)],
        speed=lambda *_: next(speeds),
    )
    assert told.ended_ms("low") == T0 + HOUR + HOUR + (2 * HOUR - HOUR // 2)


# --- the end of a run -------------------------------------------------------------------------------------------------


def test_a_run_is_over_with_its_last_job_whatever_happens_to_the_machines_then() -> None:
    told = Told([job("a", T0, MINUTE)], mishaps=[(HOUR, f.NodeGone("n0")), (2 * HOUR, f.NodeBack("n0"))])
    assert told.events[-1].at_ms == T0 + MINUTE


def test_a_job_that_no_node_can_ever_hold_is_refused() -> None:
    told = Told([job("a", T0, HOUR, gpus=9), job("b", T0, HOUR)])
    assert [refusal.code for refusal in told.refusals] == ["no_node_large_enough"]
    assert told.ended_ms("b") == T0 + HOUR
