"""Gangs that change their size while they live, seen through whole cycles."""

from corral.core import facts as f
from corral.core.model import GangState
from tests.world import World, demand_of, seat


def world(nodes: int = 3) -> World:
    return World().rack("a", nodes, 2).queue("team")


def whole(*nodes: int):
    return [seat(f"a{n}", 0, 1) for n in nodes]


def test_an_elastic_gang_gives_up_what_it_does_not_need_and_goes_on():
    made = world()
    gang = made.run("e", demand=demand_of(gpus=2, tasks=3, tasks_min=1), seats=whole(0, 1, 2))
    made.submit("high", demand=demand_of(gpus=2, tasks=2), priority=1)
    made.cycle()
    made.down(gang, 85)
    made.cycle()
    assert (gang.state, len(gang.seats)) == (GangState.STARTING, 1)


def test_an_elastic_gang_with_spares_gives_up_what_it_does_not_need_and_goes_on():
    made = world()
    gang = made.run("e", demand=demand_of(gpus=2, tasks=2, tasks_min=1, spares=1), seats=whole(0, 1, 2))
    made.submit("high", demand=demand_of(gpus=2), priority=1)
    made.cycle()
    made.down(gang, 85)
    made.cycle()
    assert (gang.state, len(gang.seats)) == (GangState.STARTING, 1)


def test_an_elastic_gang_grows_when_nobody_waits():
    made = world()
    gang = made.run("e", demand=demand_of(gpus=2, tasks=3, tasks_min=1), seats=whole(0), restart_cost_ms=1)
    made.wait(100_000)
    made.cycle()
    made.down(gang, 85)
    made.cycle()
    assert (gang.state, len(gang.seats)) == (GangState.STARTING, 3)


def test_an_elastic_gang_with_spares_grows_when_nobody_waits():
    made = world(4)
    demand = demand_of(gpus=2, tasks=3, tasks_min=1, spares=1)
    gang = made.run("e", demand=demand, seats=whole(0, 1), restart_cost_ms=1)
    made.wait(100_000)
    made.cycle()
    made.down(gang, 85)
    made.cycle()
    assert (gang.state, len(gang.seats), len(gang.spares)) == (GangState.STARTING, 3, 1)


def test_the_spare_of_a_gang_takes_the_place_of_what_was_lost():
    made = world(4)
    gang = made.run("e", demand=demand_of(gpus=2, tasks=2, spares=1), seats=whole(0, 1, 2))
    made.tell(f.NodeGone("a0"))
    made.cycle()
    assert sorted(each.node for each in gang.seats) == ["a1", "a2"]
    assert gang.state is GangState.STARTING
