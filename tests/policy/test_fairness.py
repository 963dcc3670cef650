"""Shares: dominant resource, weight, decay, charged on entry; and the order that follows from them."""

import random

import pytest

from corral.core.cluster.resources import amounts
from corral.core.model import GangState
from corral.policy.cycle.fairness import Shares
from tests.world import World, demand_of

HOUR_MS = 3_600_000


def world(**queues: int) -> World:
    """One node of eight GPUs and sixteen CPUs; queues with their weights."""
    made = World(half_life_ms=HOUR_MS).rack("a", 1, 8, cpu_milli=16_000)
    for name, weight in queues.items():
        made.queue(name, weight=weight)
    return made


def shares(made: World) -> Shares:
    return Shares(made.snapshot().draft())


def test_a_start_is_charged_at_once_so_that_a_burst_gains_nothing():
    made = world(a=1, b=1)
    made.run("j", "a")
    assert shares(made).queue("a") > shares(made).queue("b") == 0


def test_a_share_is_measured_in_the_resource_of_which_most_is_used():
    made = world(gpus=1, cpus=1)
    made.run("g", "gpus", demand_of(gpus=2))
    made.run("c", "cpus", demand_of(gpus=1, amounts=amounts({"cpu_milli": 8_000})))
    assert shares(made).queue("cpus") == 2 * shares(made).queue("gpus")


def test_twice_the_weight_is_half_the_share():
    made = world(light=1, heavy=2)
    for name in ("light", "heavy"):
        made.run(name, name, demand_of(gpus=2))
    assert shares(made).queue("light") == 2 * shares(made).queue("heavy")


def test_what_was_used_is_forgotten_with_time():
    made = world(a=1)
    gang = made.run("j", "a", demand_of(gpus=8))
    made.wait(HOUR_MS)
    made.down(gang)
    before = shares(made).queue("a")
    made.wait(HOUR_MS)
    assert shares(made).queue("a") == pytest.approx(before / 2, rel=0.01)


def test_a_parent_has_what_its_children_have():
    made = world(org=1)
    made.queue("org/x").queue("org/y")
    made.run("x", "org/x", demand_of(gpus=1))
    made.run("y", "org/y", demand_of(gpus=2))
    found = shares(made)
    assert found.queue("org") == pytest.approx(found.queue("org/x") + found.queue("org/y"), abs=2)


def test_users_of_a_queue_are_measured_against_each_other():
    made = world(a=1)
    made.run("j", "a", user="ann")
    assert shares(made).user("a", "ann") > shares(made).user("a", "bob") == 0


def test_the_queue_that_has_had_less_goes_first():
    made = world(a=1, b=1)
    made.run("past", "a", demand_of(gpus=4))
    first, second = made.submit("1", "a", demand_of(gpus=4)), made.submit("2", "b", demand_of(gpus=4))
    made.cycle()
    assert (first.state, second.state) == (GangState.WAITING, GangState.STARTING)


def test_priority_goes_before_share():
    made = world(a=1, b=1)
    made.run("past", "a", demand_of(gpus=4))
    first, second = (
        made.submit("1", "a", demand_of(gpus=4), priority=1),
        made.submit("2", "b", demand_of(gpus=4)),
    )
    made.cycle()
    assert (first.state, second.state) == (GangState.STARTING, GangState.WAITING)


def test_within_a_queue_the_user_who_has_had_less_goes_first_and_then_age():
    made = world(a=1)
    made.run("past", "a", demand_of(gpus=6), user="ann")
    wanted = [made.submit(name, "a", user=user) for name, user in (("1", "ann"), ("2", "bob"), ("3", "bob"))]
    made.cycle()
    assert [gang.state for gang in wanted] == [GangState.WAITING, GangState.STARTING, GangState.STARTING]


@pytest.mark.parametrize("seed", range(3))
def test_queues_with_endless_work_receive_in_proportion_to_their_weights(seed):
    rng, made = random.Random(seed), world(one=1, two=2, five=5)
    made.checks = False
    served = dict.fromkeys(("one", "two", "five"), 0)
    for name in served:
        made.submit(name, name, demand_of(gpus=1), array=tuple(range(2_000)))
    for _ in range(300):
        made.cycle()
        made.wait(60_000)
        for gang in list(made.state.holders.values()):
            served[gang.queue] += 1
            if gang.state is GangState.STARTING:
                made.up(gang)
            if rng.random() < 0.5:
                made.down(gang)
    total = sum(served.values())
    for name, part in (("one", 1 / 8), ("two", 2 / 8), ("five", 5 / 8)):
        assert served[name] / total == pytest.approx(part, rel=0.15)
