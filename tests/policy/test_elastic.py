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


def test_a_spare_that_was_used_is_replaced_by_a_free_node():
    made = world(4)
    gang = made.run("e", demand=demand_of(gpus=2, tasks=2, spares=1), seats=whole(0, 1, 2))
    made.tell(f.NodeGone("a0"))
    made.cycle()
    assert (gang.seats, gang.spares) == (tuple(whole(2, 1)), tuple(whole(3)))


def test_the_spare_of_a_gang_takes_the_place_of_what_was_lost():
    made = world(4)
    gang = made.run("e", demand=demand_of(gpus=2, tasks=2, spares=1), seats=whole(0, 1, 2))
    made.tell(f.NodeGone("a0"))
    made.cycle()
    assert sorted(each.node for each in gang.seats) == ["a1", "a2"]
    assert gang.state is GangState.STARTING


def elastic(made: World, *nodes: int, tasks: int = 3, **spec):
    terms = {"restart_cost_ms": 1, "time_limit_ms": 3_600_000, "grace_ms": 0, **spec}
    return made.run("e", demand=demand_of(gpus=2, tasks=tasks, tasks_min=1), seats=whole(*nodes), **terms)


def grown(made: World, gang) -> int:
    """How many seats it has after a while in which nothing ends."""
    made.wait(100_000)
    made.cycle()
    if gang.state is GangState.STOPPING:
        made.down(gang, 85)
        made.cycle()
    return len(gang.seats)


def test_an_elastic_gang_grows_while_somebody_waits_for_other_hardware():
    made = world().rack("b", 1, 2, model="B200")
    gang = elastic(made, 0)
    made.run("busy", demand=demand_of(2, models=("B200",)), seats=[seat("b0", 0, 1)])
    made.submit("other", demand=demand_of(2, models=("B200",)))
    assert grown(made, gang) == 3


def test_an_elastic_gang_grows_onto_what_was_promised_to_nobody():
    """Two nodes are free. The large one will need one of them, and not the other."""
    made = world(5)
    gang = elastic(made, 0, time_limit_ms=36_000_000)
    for n in (1, 2):
        made.run(f"r{n}", demand=demand_of(2), seats=whole(n), time_limit_ms=7_200_000, grace_ms=0)
    made.submit("large", demand=demand_of(2, 3), time_limit_ms=60_000)
    before = made.cycle().reservations
    made.wait(100_000)
    plan = made.cycle()
    assert [(each.gang, each.at_ms) for each in plan.reservations] == [(each.gang, each.at_ms) for each in before]
    assert gang.state is GangState.STOPPING
    made.down(gang, 85)
    made.cycle()
    assert (gang.state, len(gang.seats)) == (GangState.STARTING, 2)


def test_an_elastic_gang_grows_onto_what_is_promised_for_when_it_is_gone():
    made = world(3)
    gang = elastic(made, 0)
    made.run("r", demand=demand_of(2), seats=whole(1), time_limit_ms=7_200_000, grace_ms=0)
    made.submit("large", demand=demand_of(2, 3), time_limit_ms=60_000)
    assert grown(made, gang) == 2


def test_an_elastic_gang_does_not_grow_where_its_own_nodes_are_promised_to_somebody():
    """When it starts again it runs for its whole time again, on the nodes it has too."""
    made = world(3)
    gang = elastic(made, 0, 1)
    made.submit("large", demand=demand_of(2, 3), time_limit_ms=60_000)
    assert grown(made, gang) == 2


def test_an_elastic_gang_does_not_grow_onto_what_is_promised_to_somebody():
    made = world(3)
    gang = elastic(made, 0)
    made.run("r", demand=demand_of(2), seats=whole(1), time_limit_ms=200_000, grace_ms=0)
    made.submit("pair", demand=demand_of(2, 2), time_limit_ms=60_000)
    assert grown(made, gang) == 1


def test_an_elastic_gang_grows_as_far_as_its_queue_may():
    made = World().rack("a", 4, 2).queue("team", limit=6)
    gang = elastic(made, 0, tasks=4)
    assert grown(made, gang) == 3
