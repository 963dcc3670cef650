"""Starts promised for later, seen through whole cycles."""

import pytest

from corral.core import facts as f
from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.intake import commands
from corral.core.model import Health
from corral.policy.backfill.rules import CONSERVATIVE, STRICT
from corral.policy.catalog import policy
from tests.world import World, demand_of, seat


def busy(**terms) -> World:
    """Two nodes of four GPUs; one is taken for 100 s, half of the other for 200 s."""
    made = World(**terms).rack("a", 2, 4).queue("team")
    made.run("long", demand=demand_of(4), seats=[seat("a0", 0, 1, 2, 3)], time_limit_ms=100_000, grace_ms=0)
    made.run("longer", demand=demand_of(2), seats=[seat("a1", 0, 1)], time_limit_ms=200_000, grace_ms=0)
    return made


def test_the_first_that_is_blocked_is_promised_the_earliest_start():
    made = busy()
    gang = made.submit("whole", demand=demand_of(4), time_limit_ms=50_000)
    plan = made.cycle()
    assert [(each.gang, each.at_ms) for each in plan.reservations] == [(gang.id, made.now + 100_000)]


PASSING = {
    "work that is gone by then": (200_000, True),
    "work that would still run": (200_001, False),
}


@pytest.mark.parametrize(("limit", "passes"), PASSING.values(), ids=PASSING.keys())
def test_whether_a_promised_gpu_may_be_used_until_then_by(limit, passes):
    made = busy()
    made.submit("two", demand=demand_of(4, 2), time_limit_ms=50_000)
    small = made.submit("small", demand=demand_of(2), time_limit_ms=limit, grace_ms=0)
    made.cycle()
    assert small.holds_seats is passes


def test_work_that_would_still_run_may_use_what_is_promised_to_nobody():
    made = busy()
    made.submit("whole", demand=demand_of(4), time_limit_ms=50_000)
    small = made.submit("small", demand=demand_of(2), time_limit_ms=10_000_000)
    made.cycle()
    assert small.holds_seats, "the promise is for the other node"


def test_a_strict_policy_lets_nobody_pass():
    strict = policy("fifo", backfill=STRICT)
    made = busy(policy=strict)
    made.submit("two", demand=demand_of(4, 2), time_limit_ms=50_000)
    small = made.submit("small", demand=demand_of(1), time_limit_ms=1_000)
    made.cycle()
    assert not small.holds_seats


def test_a_conservative_policy_promises_a_start_to_everyone_who_waits():
    made = busy(policy=policy("standard", backfill=CONSERVATIVE))
    for i in range(3):
        made.submit(f"w{i}", demand=demand_of(4), time_limit_ms=50_000, grace_ms=0)
    starts = [each.at_ms - made.now for each in made.cycle().reservations]
    assert starts == [100_000, 150_000, 200_000]


def test_a_promise_does_not_depend_on_what_was_asked_before():
    """Two gangs of one task and of different size: what was worked out for one does not bound the other."""
    made = World().rack("a", 1, 1, cpu_milli=8_000).queue("team")
    task = TaskDemand(amounts=amounts({"cpu_milli": 2_000}))
    made.run("all", demand=Demand(task=task, tasks=4), time_limit_ms=100_000, grace_ms=0)
    made.submit("one", demand=Demand(task=task))
    assert made.cycle().reservations
    made.take(commands.cancel(made.state, "one", made.now))
    made.submit("four", demand=Demand(task=task, tasks=4))
    assert [each.gang for each in made.cycle().reservations] == ["four/main"]


def test_a_gpu_that_fell_sick_since_is_not_promised():
    made = busy()
    made.submit("whole", demand=demand_of(4), time_limit_ms=50_000)
    assert made.cycle().reservations[0].seats[0].node == "a0"
    made.tell(f.GpuObserved("a0", 0, Health.SUSPECT))
    assert made.cycle().reservations[0].seats[0].node == "a1"


def test_a_promise_is_moved_forward_when_work_ends_early():
    made = busy()
    gang = made.submit("whole", demand=demand_of(4), time_limit_ms=50_000)
    made.cycle()
    made.wait(10_000)
    made.down(made.state.gangs["long/main"])
    made.cycle()
    assert gang.holds_seats


def test_work_that_overran_is_not_thought_to_end_at_once():
    made = World().rack("a", 1, 4).queue("team")
    made.run("silent", demand=demand_of(4), estimate_ms=10_000)
    made.wait(15_000)
    made.submit("next", demand=demand_of(4))
    assert made.cycle().reservations[0].at_ms == made.now + 5_000


def test_what_one_queue_may_not_have_is_not_remembered_as_full_for_others():
    world = World("fifo").rack("a", 1, 8).queue("narrow", limit=amounts({"gpu_milli:H100": 1000})).queue("wide")
    world.run("first", "narrow", demand_of(gpus=1))
    world.submit("second", "narrow", demand_of(gpus=1))
    world.cycle()
    world.submit("third", "wide", demand_of(gpus=1))
    world.take(commands.cancel(world.state, "second", world.now))
    assert [decision.gang for decision in world.cycle().decisions] == ["third/main"]
