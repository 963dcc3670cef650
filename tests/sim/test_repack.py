"""Policies that plan the whole cluster again: which gangs stay, which move, in which order, and when."""

import random

import pytest

from corral.core import events as e
from corral.core.model import NEVER_MS, Budget, Cause, GangState
from corral.core.plan import Evict, MakeRoom, Place
from corral.policy.backfill.backfill import GREEDY
from corral.policy.cycle.order import ByArrival
from corral.policy.cycle.parts import Parts
from corral.sim.research.repack.policy import Repack
from corral.sim.research.repack.ranks import ByAttainedService
from tests.world import World, demand_of, seat

MINUTE = 60_000


def bare(name):
    return name.removesuffix("/main")


def placed(plan):
    return {bare(d.gang): [s.node for s in d.seats] for d in plan.decisions if isinstance(d, Place)}


def seats_of(plan, name):
    """The seats it gets, now or by a reservation."""
    return next(d.seats for d in plan.decisions if isinstance(d, Place | MakeRoom) and bare(d.gang) == name)


def told(plan):
    """Everyone who has to leave, and why."""
    victims = {bare(v.gang): v.cause for d in plan.decisions if isinstance(d, MakeRoom) for v in d.victims}
    return victims | {bare(d.gang): d.cause for d in plan.decisions if isinstance(d, Evict)}


def settle(world):
    """Evicted gangs have ended and placed gangs run, all at one time. The first plan after that."""
    plan = world.cycle()
    for _ in range(5):
        for gang in list(world.state.holders.values()):
            if gang.state is GangState.STOPPING:
                world.save(gang, gang.saved_step + 1)
                world.down(gang, 85)
            elif gang.state is GangState.STARTING:
                world.up(gang)
        again = world.cycle()
        if not again.decisions:
            return plan
    raise AssertionError("the policy does not come to rest")


def running(world):
    return {bare(gang.id): sorted(s.node for s in gang.seats) for gang in world.state.holders.values()}


@pytest.mark.parametrize("policy", ["srtf", "srsf", "las", "srtf_moving", "srsf_moving"])
def test_two_that_together_pass_the_budget_are_not_both_placed_by(policy):
    world = World(policy).rack("a", 1, 2).queue("team", budget=Budget(gpu_ms=100_000, window_ms=NEVER_MS))
    for name in ("first", "second"):
        world.submit(name, time_limit_ms=60_000)
    assert [type(decision) for decision in world.cycle().decisions] == [Place]


# ---- which gangs stay ---------------------------------------------------------------------------------------------


def test_a_newcomer_takes_free_gpus_and_not_those_with_lower_numbers():
    world = World("srtf").rack("a", 1, 4).queue("team")
    world.run("long", demand=demand_of(2), seats=[seat("a0", 0, 1)], estimate_ms=60 * MINUTE)
    world.submit("short", demand=demand_of(2), estimate_ms=MINUTE)
    assert seats_of(world.cycle(), "short") == (seat("a0", 2, 3),)


def test_who_stays_keeps_its_gpus_though_the_newcomer_needs_a_large_part_of_the_node():
    """From empty: the newcomer takes three, the long one the fourth, and nothing is left for the longest."""
    world = World("srtf").rack("a", 1, 4).queue("team")
    world.run("long", demand=demand_of(1), seats=[seat("a0", 0)], estimate_ms=60 * MINUTE)
    world.run("longest", demand=demand_of(2), seats=[seat("a0", 1, 2)], estimate_ms=90 * MINUTE)
    world.submit("short", demand=demand_of(3), estimate_ms=MINUTE)
    plan = world.cycle()
    assert told(plan) == {"longest": Cause.PRIORITY}
    assert seats_of(plan, "short") == (seat("a0", 1, 2, 3),)


def test_one_who_rose_for_a_newcomer_stays_if_a_second_one_leaves_room_again():
    """From empty: 2, then 3, then no six are left, but four are."""
    world = World("srtf").rack("a", 1, 10).queue("team")
    world.run("six", demand=demand_of(6), seats=[seat("a0", *range(6))], estimate_ms=60 * MINUTE)
    world.run("four", demand=demand_of(4), seats=[seat("a0", *range(6, 10))], estimate_ms=90 * MINUTE)
    world.submit("two", demand=demand_of(2), estimate_ms=MINUTE)
    world.submit("three", demand=demand_of(3), estimate_ms=2 * MINUTE)
    assert told(settle(world)) == {"six": Cause.PRIORITY}
    assert running(world).keys() == {"two", "three", "four"}


@pytest.mark.parametrize("seed", range(40))
def test_on_one_node_those_run_who_would_be_seated_in_order_from_empty(seed):
    rng = random.Random(seed)
    gpus = rng.choice((5, 8, 12))
    world = World("srtf").rack("a", 1, gpus).queue("team")
    asked: dict[str, tuple[int, int]] = {}
    for step in range(6):
        for i in range(rng.randint(1, 3)):
            name = f"j{step}.{i}"
            asked[name] = (rng.randint(1, gpus), rng.randint(1, 30))
            world.submit(name, demand=demand_of(asked[name][0]), estimate_ms=asked[name][1] * MINUTE)
        settle(world)
        free, expected = gpus, set()
        left = {bare(g.id): world.snapshot().remaining_ms(g) for g in world.state.gangs.values() if not g.is_over}
        for name in sorted(left, key=lambda name: (left[name], list(asked).index(name))):
            if asked[name][0] <= free:
                free -= asked[name][0]
                expected.add(name)
        assert running(world).keys() == expected
        world.wait(MINUTE // 2)
        for gang in list(world.state.holders.values()):
            if rng.random() < 0.3:
                world.down(gang)


def test_a_job_that_must_not_be_preempted_is_not():
    world = World("srtf").rack("a", 1, 4).queue("team")
    world.run("long", demand=demand_of(4), estimate_ms=60 * MINUTE, preemptible=False)
    world.submit("short", demand=demand_of(2), estimate_ms=MINUTE)
    assert not world.cycle().decisions


# ---- who moves ---------------------------------------------------------------------------------------------


def test_a_shorter_one_takes_the_first_node_and_the_longer_one_goes_on_at_the_next():
    world = World("srtf_moving").rack("a", 2, 4).queue("team")
    world.run("long", demand=demand_of(4), estimate_ms=60 * MINUTE)
    world.submit("short", demand=demand_of(4), estimate_ms=MINUTE)
    plan = settle(world)
    assert told(plan) == {"long": Cause.MOVE}
    assert running(world) == {"short": ["a0"], "long": ["a1"]}


def test_who_moves_and_who_loses_its_seats_are_told_apart():
    world = World("srtf_moving").rack("a", 2, 4).queue("team")
    world.run("long", demand=demand_of(4), estimate_ms=60 * MINUTE)
    world.run("longest", demand=demand_of(4), estimate_ms=90 * MINUTE)
    world.submit("short", demand=demand_of(4), estimate_ms=MINUTE)
    plan = settle(world)
    assert told(plan) == {"long": Cause.MOVE, "longest": Cause.PRIORITY}
    assert running(world) == {"short": ["a0"], "long": ["a1"]}
    evicted = {bare(x.gang): x.cause for x in world.journal if isinstance(x, e.GangEvicted)}
    assert evicted == told(plan)


def test_more_than_a_node_takes_whole_nodes_and_a_gap_is_filled_from_the_front():
    world = World("srtf_moving").rack("a", 3, 4).queue("team")
    first = world.run("first", demand=demand_of(1), estimate_ms=MINUTE)
    world.run("wide", demand=demand_of(4, 2), estimate_ms=60 * MINUTE)
    assert running(world) == {"first": ["a0"], "wide": ["a1", "a2"]}
    world.wait(1_000)
    world.down(first)
    assert told(settle(world)) == {"wide": Cause.MOVE}
    assert running(world) == {"wide": ["a0", "a1"]}


def test_one_that_is_still_on_its_way_keeps_its_place_in_the_plan():
    world = World("srtf_moving").rack("a", 2, 4).queue("team")
    world.run("long", demand=demand_of(4), estimate_ms=60 * MINUTE)
    world.submit("short", demand=demand_of(4), estimate_ms=MINUTE)
    world.cycle()  # long is moved and takes its time
    world.submit("longest", demand=demand_of(4), estimate_ms=90 * MINUTE)
    assert not placed(world.cycle()), "the second node is where the long one will go"
    settle(world)
    assert running(world) == {"short": ["a0"], "long": ["a1"]}


# ---- least attained service --------------------------------------------------------------------------------


def least_served(*limits_gpu_ms, tick_ms=1):
    rank = ByAttainedService(limits_gpu_ms, tick_ms)
    return Repack(rank, Parts(ByArrival(), GREEDY), change=rank.change_ms)


def test_it_looks_again_when_the_first_of_those_who_run_will_have_had_its_share():
    world = World(least_served(10_000, 30_000)).rack("a", 1, 8).queue("team")
    start = world.now
    world.run("one", demand=demand_of(1))
    world.submit("four", demand=demand_of(4))
    assert world.cycle().look_again_ms == start + 2_500
    world.up(world.state.gangs["four/main"])
    world.wait(2_500)
    assert world.cycle().look_again_ms == start + 7_500  # the second limit of four is before the first of one
    world.wait(27_500)
    assert world.cycle().look_again_ms is None


def test_a_level_is_left_after_whole_ticks():
    world = World(least_served(10_000, tick_ms=1_000)).rack("a", 1, 8).queue("team")
    world.submit("four", demand=demand_of(4))
    assert world.cycle().look_again_ms == world.now + 3_000


def test_one_that_has_had_its_share_makes_room_for_one_that_has_not():
    world = World(least_served(10_000)).rack("a", 1, 1).queue("team")
    world.run("first")
    world.submit("second")
    assert not world.cycle().decisions
    world.wait(9_999)
    assert not world.cycle().decisions
    world.wait(1)
    assert told(settle(world)) == {"first": Cause.PRIORITY}
    assert running(world).keys() == {"second"}


def test_within_a_level_the_last_to_be_evicted_is_the_first_to_come_back():
    world = World(least_served(10_000)).rack("a", 1, 2).queue("team")
    for name in ("a", "b"):
        world.run(name)
    world.wait(20_000)  # both are on the lower level now, and run there
    settle(world)
    world.submit("wide", demand=demand_of(2))
    assert told(settle(world)).keys() == {"a", "b"}
    world.wait(5_000)  # wide comes down, behind both of them
    assert told(settle(world)) == {"wide": Cause.PRIORITY}
    assert running(world).keys() == {"a", "b"}
    world.wait(1_000)
    new = world.submit("new")
    assert told(settle(world)) == {"b": Cause.PRIORITY}, "the last of the running gangs"
    world.submit("other")
    assert told(settle(world)) == {"a": Cause.PRIORITY}
    world.down(new)
    settle(world)
    assert running(world).keys() == {"other", "a"}, "a was evicted later than b; wide has not run at this level"


def test_those_who_came_down_at_one_moment_keep_their_order_of_arrival():
    world = World(least_served(10_000)).rack("a", 1, 3).queue("team")
    for name in ("a", "b", "c"):
        world.run(name)
    world.wait(10_000)
    world.submit("new")
    assert told(settle(world)) == {"c": Cause.PRIORITY}
    world.wait(1_000)
    world.submit("newer")
    assert told(settle(world)) == {"b": Cause.PRIORITY}
