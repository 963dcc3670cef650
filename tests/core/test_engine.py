"""Facts become events only if they are news: late, repeated and unknown reports change nothing."""

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.engine import react
from corral.core.intake import commands
from corral.core.model import NEVER_MS, Cause, FailureClass, Gang, GangState, Health, QuotaChange
from tests.world import World, demand_of, image, seat, state_of


def world() -> World:
    return World().rack("a", 3).queue("team")


def running(**spec) -> tuple[World, Gang]:
    made = world()
    return made, made.run("j", demand=demand_of(tasks=2), **spec)


# ---- what is no news ----------------------------------------------------------------------------------

STALE = {
    "tasks of a gang that does not exist": f.TasksUp("ghost/main", 1, 1),
    "the end of a gang that does not exist": f.TasksDown("ghost/main", 1, 1),
    "a checkpoint of a gang that does not exist": f.Saved("ghost/main", 1, 1),
    "the loss of a node that does not exist": f.NodeGone("ghost"),
    "the return of a node that does not exist": f.NodeBack("ghost"),
    "the health of a node that does not exist": f.NodeObserved("ghost", Health.FAILED),
    "the health of a GPU of a node that does not exist": f.GpuObserved("ghost", 0, Health.FAILED),
    "a GPU the node does not have": f.GpuObserved("a0", 8, Health.FAILED),
    "a GPU with a negative number": f.GpuObserved("a0", -1, Health.FAILED),
    "a start of the attempt before": f.TasksUp("j/main", 1, 0b11),
    "an end of the attempt before": f.TasksDown("j/main", 1, 0b11, 1),
    "a loss of tasks of the attempt before": f.TasksDown("j/main", 1, 1, 1, FailureClass.NODE_LOST, "a0"),
    "a checkpoint of the attempt before": f.Saved("j/main", 1, 99),
    "an end of an attempt that has not begun": f.TasksDown("j/main", 3, 0b11),
    "a start reported twice": f.TasksUp("j/main", 2, 0b11),
    "the end of no task at all": f.TasksDown("j/main", 2, 0),
    "the end of tasks it does not have": f.TasksDown("j/main", 2, 0b11100, 1),
    "a checkpoint that is older than the newest": f.Saved("j/main", 2, 4),
    "the newest checkpoint once more": f.Saved("j/main", 2, 5),
    "a node that was never lost is back": f.NodeBack("a0"),
    "a node as healthy as before": f.NodeObserved("a0", Health.HEALTHY),
    "a GPU as healthy as before": f.GpuObserved("a0", 0, Health.HEALTHY),
    "time has passed and nothing is due": f.Ticked(),
}


@pytest.mark.parametrize("fact", STALE.values(), ids=STALE.keys())
def test_no_news(fact):
    made, gang = running()
    made.down(gang, 85)
    made.cycle()
    made.up(gang)
    made.save(gang, 5)
    assert (gang.attempt, gang.state) == (2, GangState.RUNNING)
    before = repr(image(made.state))
    assert react(made.state, fact, made.now) == []
    assert repr(image(made.state)) == before


@pytest.mark.parametrize("fact", STALE.values(), ids=STALE.keys())
def test_no_news_of_a_job_that_is_over(fact):
    made, gang = running()
    made.down(gang, 85)
    made.cycle()
    made.up(gang)
    made.save(gang, 5)
    made.down(gang, 0)
    assert react(made.state, fact, made.now) == []


def test_a_node_is_lost_once():
    made, _ = running()
    assert made.tell(f.NodeGone("a0"))
    assert made.tell(f.NodeGone("a0")) == []


def test_a_task_ends_once():
    made, gang = running()
    fact = f.TasksDown(gang.id, 1, 0b01)
    assert [type(event) for event in made.tell(fact)] == [e.TasksEnded]
    assert made.tell(fact) == []


def test_a_report_of_some_old_and_some_new_tasks_counts_for_the_new_ones():
    made, gang = running()
    made.tell(f.TasksDown(gang.id, 1, 0b01))
    made.tell(f.TasksDown(gang.id, 1, 0b11))
    assert state_of(gang) is GangState.SUCCEEDED


# ---- what is ------------------------------------------------------------------------------------------


def test_a_gang_runs_when_its_last_task_does():
    made = world()
    gang = made.submit("j", demand=demand_of(tasks=3))
    made.cycle()
    for mask, state in ((0b001, GangState.STARTING), (0b100, GangState.STARTING), (0b010, GangState.RUNNING)):
        made.tell(f.TasksUp(gang.id, 1, mask))
        assert gang.state is state


def test_a_short_task_that_ended_before_the_others_began_does_not_keep_the_gang_from_running():
    made = world()
    gang = made.submit("j", demand=demand_of(tasks=2))
    made.cycle()
    made.tell(f.TasksUp(gang.id, 1, 0b01))
    made.tell(f.TasksDown(gang.id, 1, 0b01))
    made.tell(f.TasksUp(gang.id, 1, 0b10))
    assert state_of(gang) is GangState.RUNNING


def test_a_task_that_ended_before_anyone_said_it_ran_does_not_keep_the_gang_starting_for_ever():
    made = world()
    gang = made.submit("j", demand=demand_of(tasks=2))
    made.cycle()
    made.tell(f.TasksUp(gang.id, 1, 0b10))
    made.tell(f.TasksDown(gang.id, 1, 0b01))
    assert state_of(gang) is GangState.RUNNING


def test_a_gang_that_ends_before_it_was_seen_to_run_has_ended():
    made = world()
    gang = made.submit("j")
    made.cycle()
    made.down(gang, 0)
    assert state_of(gang) is GangState.SUCCEEDED


def test_the_loss_of_a_node_breaks_the_gang_and_survivors_keep_their_seats():
    made = world()
    gang = made.run("j", demand=demand_of(gpus=8, tasks=2), seats=[seat("a0", *range(8)), seat("a1", *range(8))])
    made.tell(f.NodeGone("a0"))
    assert state_of(gang) is GangState.BROKEN
    assert len(gang.seats) == 2
    made.cycle()
    assert (gang.state, gang.attempt) == (GangState.STARTING, 2)
    assert sorted(each.node for each in gang.seats) == ["a1", "a2"]


def test_a_gang_whose_ended_tasks_sat_on_the_lost_node_runs_on():
    made = world()
    gang = made.run("j", demand=demand_of(gpus=8, tasks=2), seats=[seat("a0", *range(8)), seat("a1", *range(8))])
    made.tell(f.TasksDown(gang.id, 1, 0b01))
    made.tell(f.NodeGone("a0"))
    assert state_of(gang) is GangState.RUNNING


def test_a_gang_that_was_leaving_has_left_when_its_last_node_is_lost():
    made, gang = running()
    made.take(commands.requeue(made.state, "j", made.now))
    made.tell(f.NodeGone(gang.seats[0].node))
    assert state_of(gang) is GangState.WAITING
    assert gang.retries == {}


def test_a_node_that_comes_back_takes_work_again():
    made = World().rack("a", 1).queue("team")
    made.tell(f.NodeGone("a0"))
    gang = made.submit("j")
    made.cycle()
    assert state_of(gang) is GangState.WAITING
    made.tell(f.NodeBack("a0"))
    made.cycle()
    assert state_of(gang) is GangState.STARTING


def test_one_failed_gpu_stops_its_owner_and_no_other():
    made = world()
    owner = made.run("owner", seats=[seat("a0", 0)])
    other = made.run("other", seats=[seat("a0", 1)])
    made.tell(f.GpuObserved("a0", 0, Health.FAILED))
    assert (owner.state, other.state) == (GangState.STOPPING, GangState.RUNNING)
    assert owner.eviction is not None
    assert owner.eviction.failure is FailureClass.GPU_FAULT


TENANTS = {
    Health.SUSPECT: GangState.RUNNING,
    Health.DRAINING: GangState.STOPPING,
    Health.FAILED: GangState.STOPPING,
}


@pytest.mark.parametrize(("health", "expected"), TENANTS.items(), ids=[str(health) for health in TENANTS])
def test_what_runs_on_a_node_that_becomes(health, expected):
    made, gang = running()
    made.tell(f.NodeObserved("a0", health))
    late = made.submit("late", demand=demand_of(gpus=8, tasks=3))
    made.cycle()
    assert gang.state is expected
    assert state_of(late) is GangState.WAITING, "nothing new is placed there"


def test_a_checkpoint_before_the_gang_runs_is_no_checkpoint_of_this_attempt():
    made = world()
    gang = made.submit("j")
    made.cycle()
    assert made.save(gang, 3) == []


# ---- what time does -----------------------------------------------------------------------------------


def test_the_grace_ends_once_and_a_late_tick_is_enough():
    made, gang = running(grace_ms=5_000)
    made.take(commands.requeue(made.state, "j", made.now))
    assert made.wait(4_999) == []
    assert [type(event) for event in made.wait(1_000_000)] == [e.GraceEnded]
    assert made.wait(1_000_000) == []
    assert gang.grace_over


def test_a_time_limit_counts_from_the_start_of_the_attempt():
    made, gang = running(time_limit_ms=10_000)
    made.wait(9_000)
    made.down(gang, 85)
    made.cycle()
    made.up(gang)
    assert made.wait(9_999) == []
    made.wait(1)
    assert gang.eviction is not None
    assert gang.eviction.cause is Cause.TIME_LIMIT


def test_the_next_timer_is_never_later_than_what_is_due():
    made, _ = running(time_limit_ms=10_000)
    assert made.state.next_timer_ms() == made.now + 10_000


def test_no_timer_is_left_when_everything_is_over():
    made, gang = running(time_limit_ms=10_000, deadline_ms=9_000_000)
    made.down(gang, 0)
    made.wait(1)
    assert made.state.next_timer_ms() is None


def test_it_is_known_when_time_alone_changes_something():
    made = world()
    assert (made.state.queues.next_change_ms(made.now), made.state.next_timer_ms()) == (NEVER_MS, None)
    change = QuotaChange(made.now + 50_000, made.now + 90_000)
    made.queue("other", changes=(change,))
    assert made.state.queues.next_change_ms(made.now) == made.now + 50_000
    made.submit("later", begin_ms=made.now + 20_000)
    assert made.state.next_timer_ms() == made.now + 20_000
