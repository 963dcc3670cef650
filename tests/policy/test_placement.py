"""Where a gang sits, case by case: the tightest place, close together, and constraints that meet."""

import pytest

from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.cluster.topology import Topology
from corral.core.intake import commands
from corral.core.model import GangState, Profile
from corral.policy.placement.seating import FREE, find_seats
from tests.world import World, demand_of, node_spec, open_capacity, seat, state_of


def cluster(used: dict[str, int] | None = None, level: str = "rack", gpus: int = 4, islands: int = 1):
    """Racks a and b of two nodes; ``used``: how many GPUs of a node are taken, lowest first."""
    nodes = [node_spec(f"{rack}{i}", gpus, (rack,), islands) for rack in "ab" for i in range(2)]
    capacity = open_capacity(Topology((level,), nodes))
    for name, count in (used or {}).items():
        capacity.take(capacity.topology.number[name], (1 << count) - 1, 0, ())
    return capacity


def nodes_of(capacity, demand: Demand, **terms) -> list[str] | None:
    found = find_seats(capacity, demand, demand.tasks, **terms)
    return None if found is None else [each.node for each in found.everything]


CASES = {
    "one GPU goes where least is left over": (cluster({"b1": 3, "a0": 1}), demand_of(1), ["b1"]),
    "a whole node goes to an empty node": (cluster({"a0": 1}), demand_of(4), ["a1"]),
    "two nodes go to one rack": (cluster({"a0": 1}), demand_of(4, 2), ["b0", "b1"]),
    "a gang that fits one node stays on it": (cluster({"a0": 2}), demand_of(1, 3), ["a1"] * 3),
    "of two nodes that hold it the fuller": (cluster({"b0": 1}), demand_of(1, 3), ["b0"] * 3),
    "of two racks that hold it the fuller": (
        cluster({"a0": 1, "b0": 2}), demand_of(1, 6), ["b0"] * 2 + ["b1"] * 4,
    ),
    "across racks only if no rack holds it": (
        cluster({"a0": 1, "b0": 1}), demand_of(4, 2), ["a1", "b1"],
    ),
    "one task to each rack": (cluster({"a0": 1}), demand_of(1, 2, spread="rack"), ["a0", "b0"]),
    "one task to each node": (cluster(), demand_of(1, 4, spread="node"), ["a0", "a1", "b0", "b1"]),
    "spares sit beside the gang": (cluster({"a0": 4}), demand_of(4, 1, spares=1), ["b0", "b1"]),
    "in one rack or not at all": (cluster({"a0": 1, "b0": 1}), demand_of(4, 2, within="rack"), None),
    "on one node though at most two to a rack": (
        cluster(), demand_of(1, 2, within="node", spread="rack", spread_max=2), ["a0"] * 2,
    ),
    "on the node that has room though another of its rack comes first": (
        cluster({"a0": 3, "b0": 4, "b1": 4}),
        demand_of(1, 2, within="node", spread="rack", spread_max=2),
        ["a1"] * 2,
    ),
    "a group within an island though the node has more GPUs elsewhere": (
        cluster({"a0": 1, "a1": 4, "b0": 4, "b1": 4}, islands=2), demand_of(2, 1, tp=2), ["a0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("capacity", "demand", "expected"), CASES.values(), ids=CASES.keys())
def test_a_gang_sits(capacity, demand, expected):
    assert nodes_of(capacity, demand) == expected


def test_a_job_that_is_accepted_on_one_node_and_spread_over_racks_starts_on_an_empty_cluster():
    world = World().rack("a", 2, 4).rack("b", 2, 4).queue("team")
    gang = world.submit("j", demand=demand_of(1, 2, within="node", spread="rack", spread_max=2))
    world.cycle()
    assert gang.holds_seats


def test_a_group_takes_gpus_of_one_island():
    capacity = cluster({"a0": 1, "a1": 4, "b0": 4, "b1": 4}, islands=2)
    found = find_seats(capacity, demand_of(2, tp=2), 1)
    assert found is not None
    assert found.seats == (seat("a0", 2, 3),)


def test_a_group_that_spans_nodes_of_an_nvlink_domain_takes_gpus_of_several_islands_of_a_node():
    capacity = cluster(level="nvlink", gpus=8, islands=2)
    for n in range(4):
        capacity.take(n, 0b0001_0001, 0, ())  # three of four left on each island
    found = find_seats(capacity, demand_of(4, 2, tp=8), 2)
    assert found is not None
    assert [each.gpus.bit_count() for each in found.seats] == [4, 4]
    assert found.seats[0].node[0] == found.seats[1].node[0]


def test_slices_fill_a_shared_gpu_before_they_open_another():
    capacity = cluster()
    capacity.take(3, 0b0100, 50_000, ())
    found = find_seats(capacity, Demand(task=TaskDemand(slice_mib=30_000)), 1)
    assert found is not None
    assert found.seats == (seat("b1", 2, slice_mib=30_000),)


def test_a_slice_does_not_open_a_gpu_while_a_shared_one_has_room_on_another_node():
    capacity = cluster({"a0": 1, "a1": 2})
    capacity.take(2, 0b0001, 10_000, ())
    found = find_seats(capacity, Demand(task=TaskDemand(slice_mib=30_000)), 1)
    assert found is not None
    assert found.seats == (seat("b0", 0, slice_mib=30_000),)


def test_a_preferred_level_is_waited_for_and_then_given_up():
    world = World().rack("a", 2, 4).rack("b", 2, 4).queue("team")
    for node in ("a0", "b0"):
        world.run(f"on-{node}", seats=[seat(node, 0)])
    gang = world.submit("j", demand=demand_of(4, 2, prefer="rack", prefer_wait_ms=60_000))
    world.cycle()
    assert not gang.holds_seats
    world.wait(60_000)
    world.cycle()
    assert gang.holds_seats


def test_avoided_nodes_are_avoided_and_nothing_is_barred_by_default():
    assert nodes_of(cluster({"a0": 3}), demand_of(1), avoid=("a0",)) == ["a1"]
    assert FREE.barred == {}


def test_a_slice_is_placed_beside_one_that_sits_down_on_its_claim_while_some_queue_keeps_gpus():
    """What is decided commits: plan and commit agree on what a queue may have of one GPU model."""
    world = World().rack("a", 1, 1, model="A100").rack("b", 1, 4).queue("team").queue("keeper", guarantee=1, lend=0)
    world.take(commands.drain(world.state, "b0", world.now))
    victim = world.run("victim", seats=[seat("a0", 0)])
    part = demand_of(gpus=0, slice_mib=10_000)
    first = world.submit("first", demand=part, priority=1)
    world.cycle()
    world.down(victim, 85)
    second = world.submit("second", demand=part, priority=1)
    world.cycle()
    assert [state_of(first), state_of(second)] == [GangState.STARTING] * 2


def test_a_node_to_keep_off_is_used_all_the_same_when_the_cluster_has_shrunk_to_it():
    world = World().rack("a", 2, 4).queue("team")
    gang = world.submit("j", demand=demand_of(4))
    world.state.backlog.remove(gang)
    gang.profile = Profile(gang.demand, None, ("a0",))
    world.state.backlog.add(gang)
    world.take(commands.remove_node(world.state, "a1", world.now))
    world.cycle()
    assert [seat.node for seat in gang.seats] == ["a0"]


def test_a_gang_that_keeps_off_a_node_leaves_it_to_others_who_want_the_same():
    world = World().rack("a", 2, 4).queue("team")
    world.run("other", demand=demand_of(4), seats=[seat("a1", 0, 1, 2, 3)])
    world.run("before", demand=demand_of(4), seats=[seat("a0", 0, 1, 2, 3)])
    blocked = world.submit("blocked", demand=demand_of(4, 2))  # takes the one promise of the pool
    choosy = world.submit("choosy", demand=demand_of(4))
    world.state.backlog.remove(choosy)
    choosy.profile = Profile(choosy.demand, 1_000, ("a0",))
    world.state.backlog.add(choosy)
    plain = world.submit("plain", demand=demand_of(4), time_limit_ms=1_000, grace_ms=0)
    world.down(world.state.gangs["before/main"])
    world.cycle()
    assert (blocked.holds_seats, choosy.holds_seats, plain.holds_seats) == (False, False, True)
