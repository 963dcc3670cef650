"""What follows when an attempt is over: done, back in line or given up."""

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import MEMORY_MIB, Seat, amount_of, amounts
from corral.core.intake import commands
from corral.core.model import (
    CRASH_LOOP,
    NEVER_MS,
    QUICK_MS,
    After,
    Blocker,
    Budget,
    Cause,
    Dependency,
    FailureClass,
    Gang,
    GangState,
    Health,
    RetryRule,
)
from tests.world import World, demand_of, state_of

MINUTE_MS = 60_000
USER_ERROR, OUT_OF_MEMORY = FailureClass.USER_ERROR, FailureClass.OUT_OF_MEMORY


def world() -> World:
    return World().rack("a", 2, memory_mib=100_000).queue("team")


def run_again(made: World, gang: Gang) -> None:
    """Let a gang that waits for its backoff start and run."""
    made.wait(max(0, gang.not_before_ms - made.now))
    made.cycle()
    made.up(gang)
    assert state_of(gang) is GangState.RUNNING


def evict(made: World, gang: Gang, cause: Cause) -> None:
    made.apply(e.GangEvicted(made.now, gang.id, gang.attempt, cause, made.now + 30_000))


# ---- without an eviction ----------------------------------------------------------------------

ENDS = {
    "exit 0 is success": (dict(exit_code=0), GangState.SUCCEEDED),
    "exit 1 is the user's error": (dict(exit_code=1), GangState.FAILED),
    "exit 85 asks to be run again": (dict(exit_code=85), GangState.WAITING),
    "out of memory is not retried unless asked": (
        dict(exit_code=137, failure=OUT_OF_MEMORY),
        GangState.FAILED,
    ),
}


@pytest.mark.parametrize(("report", "expected"), ENDS.values(), ids=ENDS.keys())
def test_an_attempt_ends(report, expected):
    made = world()
    gang = made.run("j")
    made.down(gang, **report)
    assert gang.state is expected


def test_another_exit_code_may_mean_run_me_again():
    made = world()
    gang = made.run("j", requeue_exit=99)
    made.down(gang, 99)
    assert state_of(gang) is GangState.WAITING
    other = made.run("k", requeue_exit=99)
    made.down(other, 85)
    assert state_of(other) is GangState.FAILED


def test_the_first_bad_exit_code_of_a_gang_decides():
    made = world()
    gang = made.run("j", demand=demand_of(tasks=3))
    made.tell(f.TasksDown(gang.id, gang.attempt, 0b001, 3))
    assert state_of(gang) is GangState.STOPPING, "the others are stopped"
    made.tell(f.TasksDown(gang.id, gang.attempt, 0b110, 0))
    assert state_of(gang) is GangState.FAILED
    assert gang.exit_code == 3


# ---- after an eviction ------------------------------------------------------------------------------------

RETURNING = (Cause.RECLAIM, Cause.PRIORITY, Cause.TIME_SHARE, Cause.MOVE, Cause.DRAIN, Cause.REQUEUE)


@pytest.mark.parametrize("cause", RETURNING)
@pytest.mark.parametrize("exit_code", [1, 85, 130, 137, 143])
def test_who_was_evicted_and_left_comes_back_whatever_its_exit_code(cause, exit_code):
    made = world()
    gang = made.run("j")
    evict(made, gang, cause)
    made.down(gang, exit_code)
    assert state_of(gang) is GangState.WAITING
    assert gang.retries == {}


def test_exit_0_after_a_checkpoint_acknowledged_while_leaving_means_run_me_again():
    made = world()
    gang = made.run("j")
    evict(made, gang, Cause.PRIORITY)
    made.save(gang, 10)
    made.down(gang, 0)
    assert state_of(gang) is GangState.WAITING


def test_exit_0_without_a_checkpoint_while_leaving_means_done():
    made = world()
    gang = made.run("j")
    made.wait(1_000)
    made.save(gang, 10)
    made.wait(1_000)
    evict(made, gang, Cause.PRIORITY)
    made.down(gang, 0)
    assert state_of(gang) is GangState.SUCCEEDED


TIME_LIMIT = {
    "exit 0 in its grace is success": (0, False, GangState.SUCCEEDED),
    "exit 0 after a checkpoint in its grace means there is more to do": (0, True, GangState.WAITING),
    "exit 85 in its grace means there is more to do": (85, True, GangState.WAITING),
    "killed is over its limit": (137, False, GangState.FAILED),
}


@pytest.mark.parametrize(("exit_code", "saves", "expected"), TIME_LIMIT.values(), ids=TIME_LIMIT.keys())
def test_at_the_time_limit(exit_code, saves, expected):
    made = world()
    gang = made.run("j", time_limit_ms=MINUTE_MS)
    made.wait(MINUTE_MS)
    assert gang.eviction is not None
    assert gang.eviction.cause is Cause.TIME_LIMIT
    if saves:
        made.save(gang, 1)
    made.down(gang, exit_code)
    assert gang.state is expected


def test_a_preempted_gang_keeps_its_place_in_line():
    made = world()
    first, second = made.run("first", demand=demand_of(gpus=8, tasks=2)), made.submit("second")
    evict(made, first, Cause.PRIORITY)
    made.down(first, 143)
    assert first.rank < second.rank
    assert first.not_before_ms == 0
    made.cycle()
    assert state_of(first) is GangState.STARTING


def test_a_preempted_gang_loses_only_what_it_had_not_saved():
    made = world()
    gang = made.run("j", demand=demand_of(gpus=4))
    made.wait(100_000)
    made.save(gang, 1)
    made.wait(30_000)
    evict(made, gang, Cause.PRIORITY)
    stopped = next(event for event in made.down(gang, 143) if isinstance(event, e.GangStopped))
    assert stopped.failure is FailureClass.PREEMPTED
    assert stopped.lost_gpu_ms == 4 * 30_000
    assert gang.done_ms == 100_000


def test_work_lost_to_a_preemption_is_written_against_the_queue_that_caused_it():
    made = World().rack("a", 1).queue("owner", guarantee=8).queue("borrower")
    victim = made.run("v", "borrower", demand_of(gpus=8))
    made.wait(10_000)
    owner = made.submit("o", "owner", demand_of(gpus=8))
    made.cycle()
    assert owner.claim
    made.down(victim, 143)
    queues = made.state.queues.queues
    assert queues["owner"].loss_caused_gpu_ms == queues["borrower"].loss_suffered_gpu_ms == 8 * 10_000


def test_a_victim_stops_in_peace_though_the_queue_it_left_for_is_gone():
    made = World().rack("a", 1).queue("owner", guarantee=8).queue("borrower")
    victim = made.run("v", "borrower", demand_of(gpus=8))
    made.wait(10_000)
    made.submit("o", "owner", demand_of(gpus=8))
    made.cycle()
    made.take(commands.cancel(made.state, "o", made.now))
    made.take(commands.remove_queue(made.state, "owner", made.now))
    made.down(victim, 143)
    assert state_of(victim) is GangState.WAITING


def test_a_cancelled_gang_is_cancelled_however_it_exits():
    made = world()
    for job, exit_code in (("a", 0), ("b", 85), ("c", 137)):
        gang = made.run(job)
        made.take(commands.cancel(made.state, job, made.now))
        made.down(gang, exit_code)
        assert state_of(gang) is GangState.CANCELLED


# ---- retries ------------------------------------------------------------------------------------------


def test_a_retry_rule_is_used_up_by_its_own_class_alone():
    made = world()
    rules = ((USER_ERROR, RetryRule(1, 0)), (OUT_OF_MEMORY, RetryRule(1, 0)))
    gang = made.run("j", retries=rules)
    made.wait(2 * QUICK_MS)
    made.down(gang, 1)
    run_again(made, gang)
    made.wait(2 * QUICK_MS)
    made.down(gang, 1, failure=OUT_OF_MEMORY)
    run_again(made, gang)
    made.wait(2 * QUICK_MS)
    made.down(gang, 1)
    assert state_of(gang) is GangState.FAILED
    assert gang.retries == {USER_ERROR: 1, OUT_OF_MEMORY: 1}


def test_backoff_doubles_with_each_retry_of_the_class():
    made = world()
    gang = made.run("j", retries=((USER_ERROR, RetryRule(3, 10_000)),))
    waits = []
    for _ in range(3):
        made.wait(2 * QUICK_MS)
        made.down(gang, 1)
        waits.append(gang.not_before_ms - made.now)
        assert gang.blockers == Blocker.BACKOFF
        run_again(made, gang)
    assert waits == [10_000, 20_000, 40_000]


def test_a_gang_in_backoff_is_not_placed_before_its_time():
    made = world()
    gang = made.run("j", retries=((USER_ERROR, RetryRule(1, 10_000)),))
    made.wait(2 * QUICK_MS)
    made.down(gang, 1)
    made.wait(9_999)
    made.cycle()
    assert state_of(gang) is GangState.WAITING
    made.wait(1)
    made.cycle()
    assert state_of(gang) is GangState.STARTING


def test_a_crash_loop_is_stopped_even_if_retries_are_without_end():
    made = world()
    gang = made.run("j", retries=((USER_ERROR, RetryRule(None, 0)),))
    for crash in range(CRASH_LOOP):
        made.wait(1_000)
        made.down(gang, 1)
        if crash < CRASH_LOOP - 1:
            run_again(made, gang)
    assert state_of(gang) is GangState.FAILED
    assert any(isinstance(event, e.GangFinished) and event.why == "crash loop" for event in made.journal)


def test_a_checkpoint_shows_that_it_is_no_crash_loop():
    made = world()
    gang = made.run("j", retries=((USER_ERROR, RetryRule(None, 0)),))
    for step in range(2 * CRASH_LOOP):
        made.wait(1_000)
        made.save(gang, step)
        made.down(gang, 1)
        run_again(made, gang)
    assert state_of(gang) is GangState.RUNNING


def test_infrastructure_faults_never_use_up_the_users_retries():
    made = world()
    gang = made.run("j", retries=((USER_ERROR, RetryRule(1, 0)),))
    for _ in range(3):
        made.wait(2 * QUICK_MS)
        made.tell(f.GpuObserved(gang.seats[0].node, 0, Health.FAILED))
        made.down(gang, 137)
        made.tell(f.GpuObserved("a0", 0, Health.HEALTHY))
        made.tell(f.GpuObserved("a1", 0, Health.HEALTHY))
        run_again(made, gang)
    assert gang.retries.get(USER_ERROR, 0) == 0


def test_a_gang_that_failed_by_a_gpu_avoids_the_node_and_goes_to_the_head():
    """Unless it is known which GPU it was: this one is back, so it may happen again."""
    made = world()
    earlier = made.submit("earlier", held=True)
    gang = made.run("j")
    node = gang.seats[0].node
    made.wait(2 * QUICK_MS)
    made.tell(f.GpuObserved(node, 0, Health.FAILED))
    made.tell(f.GpuObserved(node, 0, Health.HEALTHY))
    made.down(gang, 137)
    assert gang.profile.avoid == (node,)
    assert gang.rank < earlier.rank
    run_again(made, gang)
    assert gang.seats[0].node != node


def test_a_gpu_that_failed_is_fenced_alone_and_its_gang_goes_on_beside_it_at_once():
    made = World().rack("a", 2).queue("team")
    made.run("other", demand=demand_of(gpus=6), seats=[Seat("a1", 0b111111)])
    gang = made.run("j", demand=demand_of(gpus=4), seats=[Seat("a0", 0b1111)])
    made.wait(2 * QUICK_MS)
    made.tell(f.GpuObserved("a0", 3, Health.FAILED, "Xid 79"))
    made.down(gang, 137)
    assert gang.profile.avoid == ()
    assert gang.not_before_ms == 0
    made.cycle()
    assert gang.seats[0].node == "a0"
    assert not gang.seats[0].gpus >> 3 & 1
    assert made.state.nodes["a0"].gpu_why == {3: "Xid 79"}


def test_a_node_is_not_avoided_if_the_gang_could_then_never_run():
    made = World().rack("a", 1).queue("team")
    gang = made.run("j")
    made.wait(2 * QUICK_MS)
    made.tell(f.GpuObserved("a0", 7, Health.FAILED))
    made.tell(f.GpuObserved("a0", 0, Health.FAILED))
    made.down(gang, 137)
    assert gang.profile.avoid == ()


def test_memory_grows_after_running_out_of_it_until_no_node_could_hold_it():
    made = world()
    wanted = demand_of(amounts=amounts({MEMORY_MIB: 40_000}))
    gang = made.run("j", demand=wanted, retries=((OUT_OF_MEMORY, RetryRule(4, 0, grow_memory_percent=50)),))
    grown = []
    for _ in range(3):
        made.wait(2 * QUICK_MS)
        made.down(gang, 137, failure=OUT_OF_MEMORY)
        grown.append(amount_of(gang.amounts, MEMORY_MIB))
        run_again(made, gang)
    assert grown == [60_000, 90_000, 90_000]


def test_a_start_that_is_not_complete_in_time_is_rolled_back_and_tried_again():
    made = world()
    gang = made.submit("j", demand=demand_of(tasks=2), start_timeout_ms=5_000)
    made.cycle()
    made.tell(f.TasksUp(gang.id, 1, 0b01))
    made.wait(5_000)
    assert gang.eviction is not None
    assert gang.eviction.cause is Cause.START_TIMEOUT
    made.down(gang, 137)
    assert state_of(gang) is GangState.WAITING
    assert gang.retries == {FailureClass.START_FAILED: 1}


# ---- what follows for others --------------------------------------------------------------------------

DEPENDENTS = {
    "after ok, ended well": (After.OK, 0, GangState.STARTING),
    "after ok, failed": (After.OK, 1, GangState.CANCELLED),
    "after any, failed": (After.ANY, 1, GangState.STARTING),
    "after not ok, failed": (After.NOT_OK, 1, GangState.STARTING),
    "after not ok, ended well": (After.NOT_OK, 0, GangState.CANCELLED),
}


@pytest.mark.parametrize(("after", "exit_code", "expected"), DEPENDENTS.values(), ids=DEPENDENTS.keys())
def test_a_dependent(after, exit_code, expected):
    made = world()
    first = made.run("first")
    second = made.submit("second", after=(Dependency("first", after),))
    made.cycle()
    assert state_of(second) is GangState.WAITING
    made.down(first, exit_code)
    made.cycle()
    assert second.state is expected


def test_a_chain_of_dependents_is_doomed_as_a_whole():
    made = world()
    first = made.run("first")
    last = [made.submit(f"d{i}", after=(Dependency(f"d{i - 1}" if i else "first"),)) for i in range(4)][-1]
    made.down(first, 1)
    assert state_of(last) is GangState.CANCELLED


def test_singletons_of_one_name_run_one_after_another():
    made = world()
    gangs = [made.submit(f"j{i}", name="nightly", singleton=True) for i in range(3)]
    for gang in gangs:
        made.cycle()
        running = [each for each in gangs if each.holds_seats]
        assert running == [gang]
        made.up(gang)
        made.down(gang)


def test_an_array_runs_no_more_abreast_than_it_may():
    made = world()
    made.submit("j", array=tuple(range(5)), array_parallel=2)
    job = made.state.jobs["j"]
    done = []
    while not job.is_over:
        made.cycle()
        running = [made.state.gangs[name] for name in job.gangs if made.state.gangs[name].holds_seats]
        assert 1 <= len(running) <= 2
        made.up(running[0])
        made.down(running[0])
        done.append(running[0].id)
    assert done == [f"j[{i}]/main" for i in range(5)]


def test_a_gang_that_can_no_longer_meet_its_deadline_is_cancelled():
    made = world()
    gang = made.submit("j", held=True, deadline_ms=made.now + 100_000, time_limit_ms=40_000)
    made.wait(59_999)
    assert state_of(gang) is GangState.WAITING
    made.wait(1)
    assert state_of(gang) is GangState.CANCELLED


def test_a_job_with_a_begin_time_waits_for_it():
    made = world()
    gang = made.submit("j", begin_ms=made.now + 1_000)
    made.cycle()
    assert state_of(gang) is GangState.WAITING
    made.wait(1_000)
    made.cycle()
    assert state_of(gang) is GangState.STARTING


def test_a_start_counts_against_the_budget_at_once_and_its_end_gives_back_the_rest():
    world = World().rack("a", 1, 4).queue("team", budget=Budget(gpu_ms=100_000, window_ms=NEVER_MS))
    first = world.run("first", time_limit_ms=60_000)
    second = world.submit("second", time_limit_ms=60_000)
    world.cycle()
    assert state_of(second) is GangState.WAITING
    world.wait(10_000)
    world.down(first)
    world.cycle()
    assert state_of(second) is GangState.STARTING
