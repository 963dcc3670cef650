"""Sharing time: who is asked to yield, who is not, and where in line one stands who has had its turn."""

from typing import Any

import pytest

from corral.core.model import Cause, GangState
from corral.core.plan import MakeRoom, Place
from corral.policy.preemption.yielding import LOOK_AGAIN_MS
from tests.world import World, demand_of, seat

MINUTE, HOUR = 60_000, 3_600_000
SAVES: dict[str, Any] = dict(checkpoints=True, restart_cost_ms=MINUTE, grace_ms=0)


def lab(gpus: int = 8, **terms: Any) -> World:
    """A site on which five gangs of two minutes have run: others of the same size will probably end as soon."""
    world = World().rack("a", 1, gpus).queue("team", **{"time_share": 10, **terms})
    for number in range(5):
        past = world.run(f"past{number}", demand=demand_of(gpus=gpus), **SAVES)
        world.wait(2 * MINUTE)
        world.down(past, 0)
    return world


def rooms(world: World) -> dict[str, tuple[str, ...]]:
    """Who makes room for whom in the next plan."""
    return {d.gang: tuple(v.gang for v in d.victims) for d in world.cycle().decisions if isinstance(d, MakeRoom)}


def leave(world: World, gang) -> None:
    """It saves and leaves."""
    world.save(gang, gang.saved_step + 1)
    world.down(gang, 85)


def test_who_runs_on_yields_to_one_that_will_probably_end_soon():
    world = lab()
    first = world.run("first", demand=demand_of(gpus=8), **SAVES)
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    world.submit("third", demand=demand_of(gpus=8), **SAVES)
    world.wait(9 * MINUTE)
    assert rooms(world) == {}
    world.wait(2 * MINUTE)
    assert rooms(world) == {"second/main": ("first/main",)}
    leave(world, first)
    assert first.rank > world.state.gangs["third/main"].rank
    assert [d.gang for d in world.cycle().decisions if isinstance(d, Place)] == ["second/main"]


def test_who_has_yielded_does_not_make_the_other_yield():
    world = lab()
    first = world.run("first", demand=demand_of(gpus=8), **SAVES)
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    world.wait(11 * MINUTE)
    assert rooms(world)
    leave(world, first)
    world.cycle()
    world.up(world.state.gangs["second/main"])
    for _ in range(8):
        world.wait(MINUTE)
        assert rooms(world) == {}


def test_nobody_yields_before_enough_gangs_have_ended():
    world = World().rack("a", 1, 8).queue("team", time_share=10)
    world.run("first", demand=demand_of(gpus=8), **SAVES)
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    world.wait(5 * HOUR)
    assert rooms(world) == {}


def test_who_does_not_save_does_not_yield():
    world = lab()
    world.run("first", demand=demand_of(gpus=8))
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    world.wait(5 * HOUR)
    assert rooms(world) == {}


def test_who_is_not_preemptible_or_in_a_queue_without_turns_does_not_yield():
    not_preemptible: dict[str, Any] = {"preemptible": False}
    for world, terms in ((lab(), not_preemptible), (lab(time_share=0), {})):
        world.run("first", demand=demand_of(gpus=8), **SAVES, **terms)
        world.submit("second", demand=demand_of(gpus=8), **SAVES)
        world.wait(5 * HOUR)
        assert rooms(world) == {}


@pytest.mark.parametrize(("holder", "waiter", "yields"), [("ann", "bob", True), ("bob", "ann", False)])
def test_who_has_had_more_of_its_share_does_not_make_others_yield(holder: str, waiter: str, yields: bool):
    world = lab()
    before = world.run("before", demand=demand_of(gpus=8), user="ann", **SAVES)
    world.wait(10 * HOUR)
    world.down(before, 0)
    world.run("first", demand=demand_of(gpus=8), user=holder, **SAVES)
    world.submit("second", demand=demand_of(gpus=8), user=waiter, **SAVES)
    world.wait(11 * MINUTE)
    assert rooms(world) == ({"second/main": ("first/main",)} if yields else {})


def test_where_time_is_shared_the_gang_that_will_probably_end_first_goes_first():
    world = lab()
    world.run("first", demand=demand_of(gpus=8), **SAVES)
    world.submit("large", demand=demand_of(gpus=8), **SAVES)
    world.submit("small", demand=demand_of(gpus=1), **SAVES)
    world.wait(MINUTE)
    world.down(world.state.gangs["first/main"], 0)
    world.run("other", demand=demand_of(gpus=4), seats=[seat("a0", 0, 1, 2, 3)], **SAVES)
    assert [d.gang for d in world.cycle().decisions if isinstance(d, Place)] == ["small/main"]


def test_nothing_is_kept_free_for_a_gang_that_others_will_yield_to():
    world = lab()
    world.run("first", demand=demand_of(gpus=8), time_limit_ms=9 * HOUR, **SAVES)
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    assert world.cycle().reservations == ()


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


def test_where_time_is_shared_and_somebody_waits_a_plan_asks_to_be_made_again():
    world = lab()
    world.run("first", demand=demand_of(gpus=8), **SAVES)
    assert world.cycle().look_again_ms is None
    world.submit("second", demand=demand_of(gpus=8), **SAVES)
    again = world.cycle().look_again_ms
    assert again is not None
    assert world.now < again <= world.now + 10 * MINUTE
    assert again % LOOK_AGAIN_MS == 0
