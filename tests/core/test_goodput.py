"""Every millisecond of a gang has one cause."""

from corral.core import events as e
from corral.core.cluster.resources import Demand, Seat, TaskDemand
from corral.core.goodput import fold, ratio_ppm
from corral.core.model import Cause, FailureClass, GangSpec, GangState, JobSpec

GANG = "1/main"
SEATS = (Seat("a", 3), Seat("b", 3))
SPEC = JobSpec(queue="q", gangs=(GangSpec(Demand(task=TaskDemand(gpus=2), tasks=2)),))


def submitted() -> e.Event:
    return e.JobSubmitted(0, "1", SPEC, "ann")


def times(*events: e.Event, now_ms: int = 1_000) -> dict[str, int]:
    """Of the only gang; they add up to all of the time."""
    goodput = fold([submitted(), *events])
    (found,) = goodput.gangs.values()
    found.until(now_ms)
    last = events[-1]
    assert sum(found.ms.values()) == (last.at_ms if isinstance(last, e.GangFinished) else now_ms)
    return {cause: ms for cause, ms in found.ms.items() if ms}


RUNNING = (e.GangPlaced(100, GANG, 1, SEATS), e.GangStarted(150, GANG, 1))


def test_a_gang_that_succeeds():
    ended = (e.GangStopped(900, GANG, 1), e.GangFinished(900, GANG, 1, GangState.SUCCEEDED))
    assert times(*RUNNING, *ended) == {"queue": 100, "start": 50, "trained": 750}


def test_work_since_the_last_checkpoint_is_lost_with_a_node():
    lost = (
        e.CheckpointCommitted(400, GANG, 1, 1),
        e.TasksLost(700, GANG, 1, 1, "a", FailureClass.NODE_LOST),
        e.GangRepaired(720, GANG, 2, SEATS),
        e.GangStarted(800, GANG, 2),
    )
    assert times(*RUNNING, *lost) == {
        "queue": 100, "start": 50, "trained": 250, "lost": 300, "repair": 100, "unsaved": 200,
    }  # fmt: skip


def test_a_save_in_the_background_holds_the_work_up_to_its_beginning():
    saved = e.CheckpointCommitted(400, GANG, 1, 1, "", 60, 10)
    assert times(*RUNNING, saved) == {"queue": 100, "start": 50, "saving": 10, "trained": 190, "unsaved": 650}


def test_a_preempted_gang_that_saves_loses_nothing():
    evicted = (
        e.GangEvicted(500, GANG, 1, Cause.PRIORITY, 900),
        e.CheckpointCommitted(540, GANG, 1, 1),
        e.GangStopped(550, GANG, 1, FailureClass.PREEMPTED),
        e.GangRequeued(550, GANG, 1),
        e.GangPlaced(700, GANG, 2, SEATS),
        e.GangStarted(730, GANG, 2),
    )
    assert times(*RUNNING, *evicted) == {
        "queue": 250, "start": 80, "trained": 350, "stopping": 50, "unsaved": 270,
    }  # fmt: skip


def test_a_failure_without_a_checkpoint_loses_everything():
    failed = (
        e.GangStopped(900, GANG, 1, FailureClass.USER_ERROR, 1),
        e.GangFinished(900, GANG, 1, GangState.FAILED, failure=FailureClass.USER_ERROR),
    )
    assert times(*RUNNING, *failed) == {"queue": 100, "start": 50, "lost": 750}


def test_gpu_time_of_gangs_that_have_ended_is_kept_in_the_sum():
    events = [submitted(), *RUNNING, e.GangStopped(900, GANG, 1), e.GangFinished(900, GANG, 1, GangState.SUCCEEDED)]
    goodput = fold(events, keeps=False)
    assert not goodput.gangs
    assert goodput.gpu_ms(5_000) == {"queue": 400, "start": 200, "trained": 3_000, "unsaved": 0}
    assert ratio_ppm(goodput.gpu_ms(5_000)) == 833_333


def test_what_ranks_wait_for_a_slow_one():
    """With a rank that takes 125 % of the usual time, a fifth of every step is waiting."""
    slow = (e.GangSlowed(350, GANG, 1, "a", 125), e.GangSlowed(750, GANG, 1, "a", 100))
    assert times(*RUNNING, *slow) == {"queue": 100, "start": 50, "straggler": 80, "unsaved": 770}


def test_a_new_attempt_waits_for_no_slow_rank():
    again = (
        e.GangSlowed(350, GANG, 1, "a", 200),
        e.TasksLost(450, GANG, 1, 1, "a", FailureClass.NODE_LOST),
        e.GangRepaired(500, GANG, 2, SEATS),
        e.GangStarted(500, GANG, 2),
    )
    assert times(*RUNNING, *again) == {
        "queue": 100, "start": 50, "straggler": 50, "lost": 250, "repair": 50, "unsaved": 500,
    }  # fmt: skip
