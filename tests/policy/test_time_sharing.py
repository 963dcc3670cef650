"""Sharing time: who is asked to yield, who is not, and where in line one stands who has had its turn."""

from typing import Any

from corral.core.model import Cause, GangState
from corral.core.plan import MakeRoom, Place
from corral.policy.preemption.preemptor import LOOK_AGAIN_MS
from tests.world import World, demand_of, seat

MINUTE, HOUR = 60_000, 3_600_000
SAVES: dict[str, Any] = dict(checkpoints=True, restart_cost_ms=MINUTE, grace_ms=0)


def lab(gpus: int = 8) -> World:
    return World().rack("a", 1, gpus).queue("team", time_share=10)


def rooms(world: World) -> dict[str, tuple[str, ...]]:
    """Who makes room for whom in the next plan."""
    return {d.gang: tuple(v.gang for v in d.victims) for d in world.cycle().decisions if isinstance(d, MakeRoom)}


def leave(world: World, gang) -> None:
    """It saves and leaves."""
    world.save(gang, gang.saved_step + 1)
    world.down(gang, 85)


def test_who_yielded_goes_to_the_end_of_its_line():
    world = lab()
    first = world.run("first", demand=demand_of(gpus=8), **SAVES)
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    world.submit("third", demand=demand_of(gpus=8), **SAVES)
    world.wait(11 * MINUTE)
    assert rooms(world) == {"second/main": ("first/main",)}
    leave(world, first)
    assert first.rank > world.state.gangs["third/main"].rank
    assert [d.gang for d in world.cycle().decisions if isinstance(d, Place)] == ["second/main"]


def test_who_was_preempted_otherwise_keeps_its_place():
    world = World().rack("a", 1, 8).queue("team")
    first = world.run("first", demand=demand_of(gpus=8), **SAVES)
    before = first.rank
    world.submit("urgent", demand=demand_of(gpus=8), priority=5)
    world.cycle()
    assert first.eviction is not None
    assert first.eviction.cause is Cause.PRIORITY
    leave(world, first)
    assert (first.rank, first.state) == (before, GangState.WAITING)


def test_a_large_gang_does_not_yield_to_few_small_ones():
    world = lab()
    world.run("large", demand=demand_of(gpus=8), **SAVES)
    for name in ("a", "b", "c"):
        world.submit(name, demand=demand_of(gpus=2), **SAVES)
    world.wait(11 * MINUTE)
    assert rooms(world) == {}


def test_a_large_gang_yields_to_as_many_small_ones_as_fill_its_seats():
    world = lab()
    large = world.run("large", demand=demand_of(gpus=8), **SAVES)
    for name in ("a", "b", "c", "d"):
        world.submit(name, demand=demand_of(gpus=2), **SAVES)
    world.wait(11 * MINUTE)
    assert set(rooms(world)) == {"a/main", "b/main", "c/main", "d/main"}
    assert large.state is GangState.STOPPING


def test_rather_than_let_half_of_what_it_wants_lie_idle_others_make_up_the_rest():
    world = lab()
    large = world.run("large", demand=demand_of(gpus=8), **SAVES)
    world.wait(HOUR)
    leave(world, large)  # and waits, having had more than anyone
    world.run("small", demand=demand_of(gpus=4), seats=[seat("a0", 0, 1, 2, 3)], **SAVES)
    world.wait(11 * MINUTE)
    assert rooms(world) == {"large/main": ("small/main",)}


def test_who_has_had_more_does_not_ask_where_little_lies_idle():
    world = lab()
    large = world.run("large", demand=demand_of(gpus=8), **SAVES)
    world.wait(HOUR)
    leave(world, large)
    world.run("small", demand=demand_of(gpus=5), seats=[seat("a0", 0, 1, 2, 3, 4)], **SAVES)
    world.wait(11 * MINUTE)
    assert rooms(world) == {}


def test_who_has_had_its_turn_is_promised_nothing_and_keeps_nothing_free():
    world = lab()
    first = world.run("first", demand=demand_of(gpus=8), time_limit_ms=4 * HOUR, **SAVES)
    world.wait(11 * MINUTE)
    leave(world, first)
    world.run("small", demand=demand_of(gpus=5), seats=[seat("a0", 0, 1, 2, 3, 4)], time_limit_ms=HOUR)
    world.submit("long", demand=demand_of(gpus=3), time_limit_ms=9 * HOUR)
    plan = world.cycle()
    assert [d.gang for d in plan.decisions] == ["long/main"]
    assert plan.reservations == ()


def test_after_long_waiting_it_is_promised_a_start_again():
    world = lab()
    first = world.run("first", demand=demand_of(gpus=8), time_limit_ms=4 * HOUR, **SAVES)
    world.wait(11 * MINUTE)
    leave(world, first)
    world.run("small", demand=demand_of(gpus=5), seats=[seat("a0", 0, 1, 2, 3, 4)], time_limit_ms=60 * HOUR)
    world.wait(25 * HOUR)
    assert [r.gang for r in world.cycle().reservations] == ["first/main"]


def test_where_time_is_shared_and_somebody_waits_a_plan_asks_to_be_made_again():
    world = lab()
    world.run("first", demand=demand_of(gpus=8), **SAVES)
    assert world.cycle().look_again_ms is None
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    again = world.cycle().look_again_ms
    assert again is not None
    assert world.now < again <= world.now + 10 * MINUTE
    assert again % LOOK_AGAIN_MS == 0


def test_a_switch_costs_the_grace_too_so_that_switching_takes_no_more_than_a_tenth_of_the_time():
    world = lab()
    graces = {**SAVES, "grace_ms": 5 * MINUTE}
    first = world.run("first", demand=demand_of(gpus=8), **graces)
    world.submit("second", demand=demand_of(gpus=8), **graces)
    asked_ms: list[int] = []
    begun, running = world.now, first
    while len(asked_ms) < 4:
        world.wait(MINUTE)
        if rooms(world):
            asked_ms.append(world.now)
            world.wait(5 * MINUTE)  # it takes all the time it was given
            leave(world, running)
            world.cycle()
            running = next(iter(world.state.holders.values()))
            world.up(running)
    switching_ms = len(asked_ms) * (5 + 1) * MINUTE
    assert switching_ms <= (world.now - begun) / 10 + 6 * MINUTE
