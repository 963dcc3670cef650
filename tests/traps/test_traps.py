"""Known bugs of other schedulers, each as a named test that fails if Corral has it too.

The numbers are those of the list of traps; 17, 19, 21 and 22 belong to parts outside the engine.
"""

import random
import sys
from itertools import permutations

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import GPU_MILLI, amounts
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import Cause, FailureClass, GangState, RetryRule
from corral.core.plan import MakeRoom, Place
from corral.policy.explain.reasons import AmountShort
from corral.sim.research.published import policy as named_policy
from tests.world import World, demand_of, node_spec, seat

HOUR = 3_600_000
MINUTE = 60_000


def placed(plan):
    return {d.gang.removesuffix("/main"): [s.node for s in d.seats] for d in plan.decisions if isinstance(d, Place)}


def rooms(plan):
    return {
        d.gang.removesuffix("/main"): sorted(v.gang.removesuffix("/main") for v in d.victims)
        for d in plan.decisions
        if isinstance(d, MakeRoom)
    }


def whole(node, gpus=8):
    return seat(node, *range(gpus))


def stop_leaving(world):
    """Every evicted gang has saved and ended."""
    for gang in list(world.state.holders.values()):
        if gang.state is GangState.STOPPING:
            world.down(gang, 85)


# ---- 1-4: victims ----------------------------------------------------------------------------------------


def _crowded(seed):
    """Three queues with guarantees, a cluster full of borrowers of several sizes, and a late owner."""
    rng = random.Random(seed)
    world = World().rack("a", 3).queue("red", guarantee=8).queue("blue", guarantee=8).queue("green", guarantee=8)
    for i in range(14):
        gpus = rng.choice((1, 2, 4, 8))
        world.submit(f"j{i}", rng.choice(("red", "blue")), demand_of(gpus), restart_cost_ms=0)
        if rng.random() < 0.3:
            _turn(world, rng)
    _turn(world, rng)
    for i in range(4):
        world.submit(f"g{i}", "green", demand_of(rng.choice((2, 4, 8))), restart_cost_ms=0)
    return world, rng


def _turn(world, rng):
    plan = world.cycle()
    for gang in list(world.state.holders.values()):
        if gang.state is GangState.STARTING:
            world.up(gang)
        elif gang.state is GangState.RUNNING and rng.random() < 0.5:
            world.save(gang, gang.saved_step + 1)
    world.wait(rng.choice((1000, 60_000)))
    return plan


@pytest.mark.parametrize("seed", range(25))
def test_trap_01_trimmed_victims_are_a_legal_set_and_no_one_is_preempted_in_a_circle(seed):
    world, rng = _crowded(seed)
    for _ in range(30):
        used = {name: queue.used.get(GPU_MILLI, 0) for name, queue in world.state.queues.queues.items()}
        plan = _turn(world, rng)
        for decision in plan.decisions:
            if isinstance(decision, MakeRoom):
                for victim in decision.victims:
                    queue = world.state.gangs[victim.gang].queue
                    if queue != world.state.gangs[decision.gang].queue:
                        assert used[queue] > 8000, "a queue within its guarantee was asked to give back"
        if not plan.decisions:
            break
        stop_leaving(world)
    else:
        pytest.fail("nothing ends, nothing comes, and the plan never settles")


def test_trap_02_a_tie_of_equal_shares_has_one_answer_and_no_second_victim():
    answers = set()
    for order in permutations(("red", "blue", "green")):
        world = World().rack("a", 3).queue("owner", guarantee=8)
        for name in order:
            world.queue(name)
        for node, name in zip(("a0", "a1", "a2"), ("red", "blue", "green"), strict=True):
            world.run(name, name, demand_of(8), [whole(node)])
        world.wait(10 * MINUTE)
        world.submit("mine", "owner", demand_of(8))
        plan = world.cycle()
        assert len(rooms(plan)["mine"]) == 1
        answers.add(tuple(rooms(plan)["mine"]))
        for _ in range(3):
            assert not world.cycle().decisions, "while the victim stops, no other gang is preempted"
    assert len(answers) == 1


def test_trap_03_quota_that_was_freed_is_held_while_other_victims_drain():
    world = World().rack("a", 3).queue("team", limit=16)
    low = [world.run(f"low{i}", "team", demand_of(8), [whole(f"a{i}")]) for i in range(2)]
    world.submit("high", "team", demand_of(8, 2), priority=5)
    assert rooms(world.cycle())["high"] == ["low0", "low1"]
    world.submit("thief", "team", demand_of(8))
    world.down(low[0], 85)
    assert not placed(world.cycle()), "a node is free, but the quota is reserved for the gang that waits"
    world.down(low[1], 85)
    assert list(placed(world.cycle())) == ["high"]


def test_trap_03_gpus_that_were_freed_are_held_while_other_victims_drain():
    world = World().rack("a", 2).queue("team")
    low = [world.run(f"low{i}", "team", demand_of(8), [whole(f"a{i}")]) for i in range(2)]
    world.submit("high", "team", demand_of(8, 2), priority=5)
    world.cycle()
    world.submit("thief", "team", demand_of(1), priority=5, time_limit_ms=1000)
    world.down(low[0], 85)
    assert "thief" not in placed(world.cycle())
    world.down(low[1], 85)
    assert list(placed(world.cycle())) == ["high"]


def test_trap_03_seats_that_were_freed_go_to_a_gang_that_would_preempt_the_one_they_are_held_for():
    """Otherwise it would start, and be preempted at once (decision 2)."""
    world = World().rack("a", 2).queue("team")
    low = [world.run(f"low{i}", "team", demand_of(8), [whole(f"a{i}")]) for i in range(2)]
    world.submit("high", "team", demand_of(8, 2), priority=5)
    world.cycle()
    world.submit("higher", "team", demand_of(1), priority=9)
    world.down(low[0], 85)
    assert not placed(world.cycle()), "the seats are not vacant yet"
    world.down(low[1], 85)
    begun = placed(world.cycle())
    assert "higher" in begun
    assert "high" not in begun


def test_trap_04_victims_are_chosen_by_placement_and_not_by_sums():
    world = World().rack("a", 5).queue("team")
    for i in range(4):
        world.run(f"cheap{i}", "team", demand_of(2), [seat(f"a{i}", 0, 1)])
        world.run(f"keep{i}", "team", demand_of(6), [seat(f"a{i}", *range(2, 8))], priority=9)
    world.run("dear", "team", demand_of(8), [whole("a4")])
    world.wait(20 * MINUTE)
    for i in range(4):
        world.save(world.state.gangs[f"cheap{i}/main"], 1)
    gang = world.submit("urgent", "team", demand_of(8), priority=1)
    assert rooms(world.cycle()) == {"urgent": ["dear"]}
    stop_leaving(world)
    world.cycle()
    assert gang.state is GangState.STARTING


def test_trap_04_no_one_is_evicted_if_that_would_start_nothing():
    world = World().rack("a", 4).queue("team")
    for i in range(4):
        world.run(f"cheap{i}", "team", demand_of(2), [seat(f"a{i}", 0, 1)])
        world.run(f"keep{i}", "team", demand_of(6), [seat(f"a{i}", *range(2, 8))], priority=9)
    world.submit("urgent", "team", demand_of(8), priority=1)
    assert not world.cycle().decisions


# ---- 5, 6, 14, 15, 20: what counts against which queue ----------------------------------------------------------


def test_trap_05_the_time_limit_does_not_count_earlier_evicted_runs():
    world = World().rack("a", 1).queue("team")
    gang = world.run("long", "team", demand_of(8), time_limit_ms=HOUR)
    world.wait(50 * MINUTE)
    world.take(commands.requeue(world.state, "long", world.now))
    world.save(gang, 1)
    world.down(gang, 85)
    world.cycle()
    world.up(gang)
    assert gang.attempt == 2
    assert not [event for event in world.wait(59 * MINUTE) if isinstance(event, e.GangEvicted)]
    assert [event.cause for event in world.wait(MINUTE) if isinstance(event, e.GangEvicted)] == [Cause.TIME_LIMIT]


def test_trap_06_a_restart_for_the_infrastructures_sake_uses_up_no_retry_of_the_user():
    world = World().rack("a", 2).queue("team")
    retries = ((FailureClass.USER_ERROR, RetryRule(1, backoff_ms=0)),)
    gang = world.run("train", "team", demand_of(8), retries=retries)
    for _ in range(3):
        world.wait(2 * MINUTE)
        world.down(gang, 1, failure=FailureClass.NETWORK, node=gang.seats[0].node)
        world.wait(2 * MINUTE)
        world.cycle()
        world.up(gang)
        assert gang.state is GangState.RUNNING
    world.wait(2 * MINUTE)
    world.down(gang, 1)
    assert gang.state is GangState.WAITING, "the user's one retry was still there"
    assert gang.retries.get(FailureClass.USER_ERROR, 0) == 1


def test_trap_06_a_lost_node_uses_up_no_retry_of_the_user():
    world = World().rack("a", 3).queue("team")
    gang = world.run("train", "team", demand_of(8))
    for _ in range(2):
        world.wait(2 * MINUTE)
        world.tell(f.NodeGone(gang.seats[0].node))
        world.cycle()
        world.up(gang)
        assert gang.state is GangState.RUNNING
    assert not gang.retries.get(FailureClass.USER_ERROR)


def test_trap_14_a_late_report_of_a_preempted_run_does_not_end_the_next_one():
    world = World().rack("a", 1).queue("team")
    gang = world.run("train", "team", demand_of(8))
    world.take(commands.requeue(world.state, "train", world.now))
    world.down(gang, 85)
    world.cycle()
    world.up(gang)
    assert gang.attempt == 2
    for fact in (
        f.TasksDown(gang.id, 1, 1, 0),
        f.TasksDown(gang.id, 1, 1, 1, FailureClass.NODE_LOST, "a0"),
        f.TasksUp(gang.id, 1, 1),
        f.Saved(gang.id, 1, 99),
    ):
        assert world.tell(fact) == []
    assert (gang.state, gang.attempt) == (GangState.RUNNING, 2)


def test_trap_15_being_preempted_is_never_a_failure_however_often_and_however_soon():
    world = World().rack("a", 1).queue("team")
    gang = world.submit("low", "team", demand_of(8))
    for i in range(12):
        world.cycle()
        world.up(gang)
        assert gang.state is GangState.RUNNING
        urgent = world.submit(f"urgent{i}", "team", demand_of(8), priority=5)
        world.wait(1000)
        assert rooms(world.cycle()) == {f"urgent{i}": ["low"]}
        world.down(gang, 137)
        world.cycle()
        world.up(urgent)
        world.down(urgent, 0)
    assert gang.state is GangState.WAITING
    assert not gang.retries
    assert gang.quick_failures == 0
    assert not gang.blockers, "and it waits for no back-off"


@pytest.mark.parametrize(
    ("saves", "exit_code", "state"),
    [
        (False, 0, GangState.SUCCEEDED),
        (True, 0, GangState.WAITING),
        (True, 85, GangState.WAITING),
        (False, 85, GangState.WAITING),
        (False, 143, GangState.WAITING),
        (False, 1, GangState.WAITING),
    ],
    ids=[
        "done by itself: succeeded",
        "saved and left with 0: back in line",
        "saved and said so: back in line",
        "said that it saved: back in line",
        "ended by the signal: back in line",
        "fell over while leaving: back in line",
    ],
)
def test_trap_20_who_leaves_within_its_grace_is_recorded_as_what_it_is(saves, exit_code, state):
    world = World().rack("a", 1).queue("team")
    gang = world.run("low", "team", demand_of(8))
    world.submit("urgent", "team", demand_of(8), priority=5)
    world.wait(MINUTE)
    world.cycle()
    world.wait(1000)
    if saves:
        world.save(gang, 7)
    events = world.down(gang, exit_code)
    assert gang.state is state
    assert not gang.retries
    stopped = next(event for event in events if isinstance(event, e.GangStopped))
    assert stopped.failure is (FailureClass.PREEMPTED if state is GangState.WAITING else None)


# ---- 7, 13: dimensions -----------------------------------------------------------------------------------


def test_trap_07_an_amount_that_a_node_does_not_state_is_unknown_and_not_zero():
    world = World().rack("a", 1, memory_mib=1000).rack("b", 1).queue("team")
    wanted = demand_of(1, amounts=amounts({"memory_mib": 800}))
    world.run("first", "team", wanted)
    gang = world.submit("second", "team", wanted)
    assert not placed(world.cycle()), "b0 does not say what it has, so nothing is reserved there"
    hold = world.hold(gang.id)
    assert hold.reasons == (AmountShort("memory_mib", 800, 1, 0, 200, 1),)


def test_trap_07_what_no_onestates_is_refused_and_does_not_wait_for_ever():
    world = World().rack("a", 1).queue("team")
    answer = world.ask("job", demand=demand_of(1, amounts=amounts({"memory_mib": 1})))
    assert isinstance(answer, Refusal)


def test_trap_07_a_queue_that_states_no_bound_for_a_dimension_is_not_bounded_at_zero():
    world = World().rack("a", 1, cpu_milli=64_000).queue("owner", guarantee=8, limit=8).queue("guest")
    world.run("borrower", "guest", demand_of(8))
    world.submit("mine", "owner", demand_of(8, amounts=amounts({"cpu_milli": 32_000})))
    assert rooms(world.cycle()) == {"mine": ["borrower"]}


def test_trap_13_a_resource_of_some_nodes_only_is_found_whatever_the_order():
    for order in permutations((("a0", {}), ("a1", {"nvme": 2}), ("a2", {"fpga": 1, "nvme": 1}))):
        world = World().queue("team")
        for name, has in order:
            spec = node_spec(name, 8, ("a",), **has)  # type: ignore[arg-type]
            world.take(commands.add_node(world.state, spec, world.now))
        world.submit("both", "team", demand_of(1, amounts=amounts({"nvme": 1, "fpga": 1})))
        world.submit("nvme", "team", demand_of(1, 2, amounts=amounts({"nvme": 1})))
        world.submit("none", "team", demand_of(8))
        plan = placed(world.cycle())
        assert plan == {"both": ["a2"], "nvme": ["a1", "a1"], "none": ["a0"]}


# ---- 8, 9, 16: lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["standard", "strict_fifo", "priority", "fair"])
def test_trap_08_the_head_of_one_pool_does_not_block_another(policy):
    world = World(policy).rack("a", 1, model="A100").rack("h", 1, model="H100").queue("team")
    world.run("busy", "team", demand_of(8, models=("H100",)), [whole("h0")])
    world.submit("head", "team", demand_of(8, models=("H100",)))
    world.submit("other", "team", demand_of(8, models=("A100",)))
    assert placed(world.cycle()) == {"other": ["a0"]}


def test_trap_08_the_pending_head_of_a_lender_does_not_block_borrowing_elsewhere():
    world = World().rack("a", 1, model="A100").rack("h", 1, model="H100")
    world.queue("owner", guarantee=16).queue("guest")
    world.run("busy", "owner", demand_of(8, models=("H100",)), [whole("h0")])
    world.submit("head", "owner", demand_of(8, models=("H100",)), priority=9)
    world.submit("borrow", "guest", demand_of(8, models=("A100",)))
    assert placed(world.cycle()) == {"borrow": ["a0"]}


def _calls(world):
    """How many Python functions one plan calls: a measure of work that no other load disturbs."""
    count = 0

    def note(_frame, event, _arg):
        nonlocal count
        count += event == "call"

    snapshot = world.snapshot()
    sys.setprofile(note)
    try:
        world.policy(snapshot)
    finally:
        sys.setprofile(None)
    return count


def test_trap_09_ten_thousand_that_cannot_start_cost_no_more_than_a_hundred():
    calls = []
    for waiting in (100, 10_000):
        world = World().rack("a", 4).queue("team")
        for i in range(4):
            world.run(f"busy{i}", "team", demand_of(6), [seat(f"a{i}", *range(6))], time_limit_ms=HOUR)
        spec = _spec(world, 8)
        world.apply(*(e.JobSubmitted(world.now, f"j{i}", spec, "ann") for i in range(waiting)))
        world.submit("small", "team", demand_of(2), time_limit_ms=MINUTE)
        calls.append(_calls(world))
        assert "small" in placed(world.cycle()), "a gang that fits is found behind all of them"
    assert calls[1] <= calls[0] * 2


def _spec(world, gpus):
    answer = world.ask("any", demand=demand_of(gpus), time_limit_ms=HOUR)
    assert not isinstance(answer, Refusal)
    return answer[0].spec


def test_trap_16_an_array_that_is_capped_is_granted_in_the_order_of_the_cap():
    world = World().rack("a", 1, gpus=2).queue("team")
    world.submit("sweep", "team", demand_of(1), array=tuple(range(6)), array_parallel=2)
    seen = []
    for _ in range(40):
        seen += placed(world.cycle())
        running = list(world.state.holders.values())
        if not running:
            break
        for gang in running[::-1][:1]:  # the later one is sent back once, then ends
            world.up(gang)
            world.down(gang, 85 if gang.attempt == 1 else 0)
    assert world.state.jobs["sweep"].succeeded, "every element had its turn"
    assert {name.partition("[")[2][0] for name in seen} == set("012345")


def test_trap_16_searches_that_failed_do_not_use_up_the_turn_of_an_owner():
    """However many searches fail in a cycle, a gang with a guarantee has one of its own."""
    world = World().rack("a", 2).queue("owner", guarantee=8).queue("guest").queue("proud")
    world.run("fixed", "proud", demand_of(8), [whole("a0")], preemptible=False, priority=9)
    world.run("loan", "guest", demand_of(8), [whole("a1")], priority=3)
    for i in range(12):  # more important than the loan's owner, and none of them can be helped
        world.submit(f"loud{i}", "proud", _twin(i), priority=8)
    world.submit("mine", "owner", demand_of(8))
    seen: dict[str, list[str]] = {}
    for _ in range(5):
        seen |= rooms(world.cycle())
    assert len(seen.get("mine", ())) == 1, "a guarantee was denied because of a borrower"


def test_trap_16_searches_that_failed_do_not_use_up_the_turn_of_the_more_important():
    """A cap on searches that always falls on the same gangs would let them wait for ever."""
    world = World().rack("a", 2).queue("team")
    world.run("fixed", "team", demand_of(8), [whole("a0")], preemptible=False)
    world.run("low", "team", demand_of(8), [whole("a1")])
    for i in range(12):
        world.submit(f"loud{i}", "team", _twin(i), priority=8)
    world.submit("urgent", "team", demand_of(8), priority=5, time_limit_ms=HOUR)
    seen: dict[str, list[str]] = {}
    for _ in range(5):
        seen |= rooms(world.cycle())
        world.wait(MINUTE)
    assert seen == {"urgent": ["low"]}


def _twin(i):
    """Shapes that all want both nodes and differ only in how large a GPU they would accept."""
    return demand_of(8, 2, vram_mib_min=1000 + i)


# ---- 10, 11, 12, 18: what is left over -------------------------------------------------------------------


def test_trap_10_what_is_leaving_already_is_not_counted_against_the_newcomer():
    world = World().rack("a", 1).queue("team", limit=8)
    leaving = world.run("leaving", "team", demand_of(8))
    world.take(commands.requeue(world.state, "leaving", world.now))
    gang = world.submit("urgent", "team", demand_of(8), priority=5)
    assert rooms(world.cycle()) == {"urgent": []}, "its room is being made already"
    world.down(leaving, 85)
    world.cycle()
    assert gang.state is GangState.STARTING


def test_trap_11_a_gang_counts_once_however_many_tasks_report():
    world = World().rack("a", 4).queue("team")
    retries = ((FailureClass.USER_ERROR, RetryRule(3, backoff_ms=0)),)
    gang = world.run("wide", "team", demand_of(1, 32), retries=retries)
    assert world.state.queues.queues["team"].used[GPU_MILLI] == 32_000
    before = len(world.journal)
    for task in range(32):
        world.tell(f.TasksDown(gang.id, 1, 1 << task, 1))
    world.wait(world.state.settings.judge_ms)
    assert gang.retries == {FailureClass.USER_ERROR: 1}
    assert len(world.journal) - before <= 32 + 4
    assert world.state.queues.queues["team"].used[GPU_MILLI] == 0


def test_trap_12_no_reason_survives_the_start_or_the_end():
    world = World().rack("a", 1).queue("team")
    first = world.run("first", "team", demand_of(8))
    gang = world.submit("second", "team", demand_of(8), held=True)

    def reasons(of):
        hold = world.hold(of.id)
        return [type(reason).__name__ for reason in hold.reasons]

    assert reasons(gang) == ["Held", "NoCapacity"]
    world.take(commands.release(world.state, "second", world.now))
    assert reasons(gang) == ["NoCapacity"]
    world.down(first, 0)
    assert reasons(gang) == ["AboutToStart"]
    world.cycle()
    assert reasons(gang) == []
    world.up(gang)
    assert reasons(gang) == []
    world.down(gang, 0)
    assert reasons(gang) == []


@pytest.mark.parametrize("ending", ["cancel", "hold", "finish"])
def test_trap_18_no_claim_or_spare_is_left_behind(ending):
    world = World().rack("a", 3).queue("team")
    low = [world.run(f"low{i}", "team", demand_of(8), [whole(f"a{i}")]) for i in range(3)]
    gang = world.submit("high", "team", demand_of(8, 2, spares=1), priority=5)
    world.cycle()
    assert gang.claim
    if ending == "finish":
        stop_leaving(world)
        world.cycle()
        world.up(gang)
        world.down(gang, 0)
        assert gang.state is GangState.SUCCEEDED
    else:
        world.take(getattr(commands, ending)(world.state, "high", world.now))
        stop_leaving(world)
    state = world.state
    assert not gang.claim
    assert not state.claimants
    assert not any(state.capacity.claimed)
    assert state.queues.queues["team"].used[GPU_MILLI] == 0
    assert set(placed(world.cycle())) == {each.job for each in low}, "everything is free for the others at once"


# ---- 23, 24: games ---------------------------------------------------------------------------------------


def test_trap_23_a_burst_before_usage_is_measured_gains_nothing():
    world = World().rack("a", 1).queue("burst").queue("steady")
    for i in range(20):
        world.submit(f"b{i}", "burst", demand_of(1))
    for i in range(20):
        world.submit(f"s{i}", "steady", demand_of(1))
    names = list(placed(world.cycle()))
    assert sum(name.startswith("b") for name in names) == 4
    assert sum(name.startswith("s") for name in names) == 4


def test_trap_23_a_burst_that_came_alone_is_charged_on_entry():
    world = World().rack("a", 1, gpus=16).queue("burst").queue("steady")
    for i in range(8):
        world.submit(f"b{i}", "burst", demand_of(1))
    world.cycle()
    for i in range(8):
        world.submit(f"c{i}", "burst", demand_of(1))
        world.submit(f"s{i}", "steady", demand_of(1))
    names = list(placed(world.cycle()))
    assert [name[0] for name in names] == ["s"] * 8, "no time has passed, and yet the burst has had its share"


def test_trap_24_a_gang_that_never_reports_a_checkpoint_is_not_spared_for_its_silence():
    world = World().rack("a", 2).queue("team")
    world.run("silent", "team", demand_of(8), [whole("a0")])
    honest = world.run("honest", "team", demand_of(8), [whole("a1")])
    world.wait(10 * HOUR)
    world.save(honest, 1)
    world.wait(40 * MINUTE)
    world.submit("urgent", "team", demand_of(8), priority=5)
    assert rooms(world.cycle()) == {"urgent": ["silent"]}


def test_trap_24_silence_does_not_grow_dearer_with_time():
    world = World().rack("a", 1).queue("team")
    gang = world.run("silent", "team", demand_of(8))
    world.wait(HOUR)
    after_an_hour = world.snapshot().price_gpu_ms(gang)
    world.wait(100 * HOUR)
    assert world.snapshot().price_gpu_ms(gang) == after_an_hour


def test_the_catalogue_is_free_of_the_traps_of_order():
    """Every policy by name starts what fits, whatever is blocked in another pool (8), and settles (1)."""
    for name in ("fifo", "strict_fifo", "priority", "fair", "sjf", "srtf", "srsf", "las", "standard"):
        assert not isinstance(named_policy(name), Refusal)
        world = World(name).rack("a", 1, model="A100").rack("h", 1, model="H100").queue("team")
        world.run("busy", "team", demand_of(8, models=("H100",)), [whole("h0")])
        world.submit("head", "team", demand_of(8, models=("H100",)))
        world.submit("other", "team", demand_of(8, models=("A100",)))
        assert "other" in placed(world.cycle()), name
        for _ in range(4):
            stop_leaving(world)
            world.cycle()
        assert not world.cycle().decisions, name
