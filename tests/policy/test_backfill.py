"""Starts promised for later, seen through whole cycles."""

import random

import pytest

from corral.core import facts as f
from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState, Health
from corral.policy.backfill.backfill import CONSERVATIVE, STRICT, Backfill
from corral.policy.catalog import policy
from corral.policy.cycle.order import ByArrival
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Standard
from tests.steps import steps
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


GAP = {
    "one that runs for long": {"estimate_ms": 1_000_000},
    "one that is as long and may use its grace": {"time_limit_ms": 100_000, "grace_ms": 30_000},
    "one that is shorter and may use its grace": {"time_limit_ms": 90_000, "grace_ms": 30_000},
}


@pytest.mark.parametrize("before", GAP.values(), ids=GAP.keys())
def test_work_that_is_gone_just_in_time_passes_behind(before):
    made = World().rack("a", 1, 4).queue("team")
    made.run("busy", demand=demand_of(2), seats=[seat("a0", 0, 1)], time_limit_ms=100_000, grace_ms=0)
    made.submit("whole", demand=demand_of(4))
    barred = made.submit("barred", demand=demand_of(1), **before)
    just = made.submit("just", demand=demand_of(1), estimate_ms=100_000)
    same = made.submit("same", demand=demand_of(1), user="bob", estimate_ms=100_000)
    made.cycle()
    assert (barred.holds_seats, just.holds_seats, same.holds_seats) == (False, True, True)


def test_many_who_would_use_their_grace_are_looked_at_together():
    def measure(count: int) -> int:
        made = World().rack("a", 1, 4).queue("team")
        made.checks = False
        made.run("busy", demand=demand_of(2), seats=[seat("a0", 0, 1)], time_limit_ms=100_000, grace_ms=0)
        made.submit("whole", demand=demand_of(4))
        for n in range(count):
            made.submit(f"b{n}", demand=demand_of(1), time_limit_ms=90_000, grace_ms=30_000)
        return steps(lambda: made.policy(made.snapshot()))

    assert measure(800) < 2 * measure(400) / 1.5


# ---- what is promised is a time, and not these GPUs or those -------------------------------------------------------


def test_a_promised_gpu_may_be_taken_where_another_of_the_node_will_do():
    """One GPU more than the head needs will be free. A short one has taken that one: the long one has another."""
    made = World().rack("a", 1, 4).queue("team")
    made.run("busy", demand=demand_of(2), seats=[seat("a0", 0, 1)], estimate_ms=100_000)
    head = made.submit("head", demand=demand_of(3), estimate_ms=100_000)
    made.submit("short", demand=demand_of(1), estimate_ms=50_000)
    long = made.submit("long", demand=demand_of(1), estimate_ms=500_000)
    promised = made.cycle().reservations
    assert long.holds_seats
    assert [(each.gang, each.at_ms - made.now) for each in promised] == [(head.id, 100_000)]
    assert not promised[0].seats[0].gpus & long.seats[0].gpus


def test_a_promised_node_may_be_taken_where_another_will_do():
    made = World().rack("a", 3, 4).queue("team")
    for n in (1, 2):
        made.run(f"busy{n}", demand=demand_of(4), seats=[seat(f"a{n}", 0, 1, 2, 3)], estimate_ms=100_000)
    made.run("part", demand=demand_of(2), seats=[seat("a0", 0, 1)], estimate_ms=50_000)
    made.submit("head", demand=demand_of(4, 2), estimate_ms=100_000)
    assert {each.node for each in made.cycle().reservations[0].seats} == {"a0", "a1"}
    long = made.submit("long", demand=demand_of(2), estimate_ms=500_000)
    promised = made.cycle().reservations
    assert long.seats[0].node == "a0"
    assert [(each.at_ms - made.now, {s.node for s in each.seats}) for each in promised] == [(100_000, {"a1", "a2"})]


def test_nobody_takes_what_the_head_will_need_wherever_it_lies():
    made = World().rack("a", 2, 4).queue("team")
    made.run("busy", demand=demand_of(4), seats=[seat("a1", 0, 1, 2, 3)], estimate_ms=100_000)
    made.run("part", demand=demand_of(2), seats=[seat("a0", 0, 1)], estimate_ms=50_000)
    head = made.submit("head", demand=demand_of(4, 2), estimate_ms=100_000)
    long = made.submit("long", demand=demand_of(2), estimate_ms=500_000)
    promised = made.cycle().reservations
    assert (long.holds_seats, [(each.gang, each.at_ms - made.now) for each in promised]) == (
        False,
        [(head.id, 100_000)],
    )


def test_what_comes_back_until_then_is_counted_for_cpus_too():
    """The head needs four CPUs more than are free now; six come back before it starts."""
    made = World().rack("a", 1, 4, cpu_milli=16_000).queue("team")
    cpus = amounts({"cpu_milli": 6_000})
    made.run("busy", demand=demand_of(2, amounts=cpus), seats=[seat("a0", 0, 1)], estimate_ms=100_000)
    made.submit("head", demand=demand_of(3, amounts=amounts({"cpu_milli": 14_000})), estimate_ms=100_000)
    small = made.submit("small", demand=demand_of(1, amounts=amounts({"cpu_milli": 2_000})), estimate_ms=500_000)
    large = made.submit("large", demand=demand_of(1, amounts=amounts({"cpu_milli": 3_000})), estimate_ms=500_000)
    promised = made.cycle().reservations
    assert (small.holds_seats, large.holds_seats) == (True, False)
    assert [each.at_ms - made.now for each in promised] == [100_000]


def test_a_slice_may_sit_beside_a_promise():
    made = World().rack("a", 1, 4).queue("team")
    made.run("busy", demand=demand_of(2), seats=[seat("a0", 0, 1)], estimate_ms=100_000)
    made.submit("head", demand=demand_of(3), estimate_ms=100_000)
    part = made.submit("part", demand=demand_of(0, slice_mib=10_000), estimate_ms=500_000)
    other = made.submit("other", demand=demand_of(1), estimate_ms=500_000)
    assert [each.at_ms - made.now for each in made.cycle().reservations] == [100_000]
    assert (part.holds_seats, other.holds_seats) == (True, False)


@pytest.mark.parametrize("seed", range(40))
def test_whoever_passes_moves_no_promised_start(seed):
    """Random clusters and lengths, promises for several, islands, slices, CPUs, racks: the next plan, made at the same
    moment, promises nobody a later start."""
    rng = random.Random(seed)
    backfill = Backfill(depth=rng.choice((1, 1, 2, 3)))
    made = World(Standard(Parts(ByArrival(), backfill))).queue("team")
    for rack in ("a", "b")[: rng.randint(1, 2)]:
        made.rack(rack, rng.randint(1, 3), rng.choice((2, 4, 8)), islands=rng.choice((1, 2)), cpu_milli=16_000)
    before: dict[str, int] = {}
    for n in range(40):
        gpus = rng.choice((1, 1, 2, 4))
        terms: dict[str, object] = {"amounts": amounts({"cpu_milli": rng.choice((500, 2_000, 6_000))})}
        if rng.random() < 0.2:
            gpus, terms["slice_mib"] = 0, 30_000
        elif gpus > 1 and rng.random() < 0.2:
            terms["tp"] = gpus
        if rng.random() < 0.2:
            terms["within"] = rng.choice(("rack", "node"))
        demand = demand_of(gpus, rng.choice((1, 1, 2, 3)), **terms)
        if not isinstance(made.ask(f"j{n}", demand=demand), Refusal):
            made.submit(f"j{n}", demand=demand, estimate_ms=rng.randint(1, 20) * 60_000)
        for _ in range(rng.choice((1, 1, 4))):  # minutes, in each of which something may end
            made.cycle()
            again = {each.gang: each.at_ms for each in made.cycle().reservations}
            moved = {name: (at_ms, again[name]) for name, at_ms in before.items() if again.get(name, 0) > at_ms}
            assert not moved, moved
            before = again
            for gang in list(made.state.holders.values()):
                if gang.state is GangState.STARTING:
                    made.up(gang)
            made.wait(60_000)
            for gang in list(made.state.holders.values()):
                if gang.placed_ms + (gang.profile.expected_ms or 0) <= made.now:
                    made.down(gang)
