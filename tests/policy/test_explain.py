"""Why a gang waits. Ordinary cases are told by tests/scenarios; here is what reasons promise."""

import msgspec
import pytest

from corral.core.cluster.resources import amounts
from corral.core.commit import commit
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import After, Dependency, GangState
from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.duration_text import span
from corral.policy.explain.holds import explain
from corral.policy.explain.reasons import (
    AboutToStart,
    AmountShort,
    BehindInLine,
    DependencyUnmet,
    Hold,
    NeverFits,
    NoCapacity,
    OverLimit,
    PreferringCloser,
    ReservedFor,
    TopologyTight,
    WaitingForStops,
)
from tests.simulation.driver import Driver
from tests.world import World, demand_of, seat

MINUTE = 60_000


def hold_of(world, gang):
    return world.hold(gang.id)


def whole(node):
    return seat(node, *range(8))


def test_a_parent_that_is_over_and_forgotten_is_no_reason():
    world = World().rack("a", 1).queue("team")
    for parent in ("p1", "p2"):
        world.submit(parent)
    child = world.submit("child", after=(Dependency("p1", After.ANY), Dependency("p2", After.ANY)))
    world.take(commands.cancel(world.state, "p1", world.now))
    world.take(commands.forget(world.state, "p1", world.now))
    assert hold_of(world, child).reasons == (DependencyUnmet("p2", "any"),)


def test_a_gang_nobody_knows_is_refused():
    world = World()
    answer = explain(world.snapshot(), world.policy, "nobody")
    assert isinstance(answer, Refusal)
    assert answer.code == "no_such_gang"


def test_a_gang_whose_turn_it_is_is_about_to_start():
    world = World().rack("a", 1).queue("team")
    gang = world.submit("job", demand=demand_of(8))
    assert hold_of(world, gang).reasons == (AboutToStart(),)


def test_whoever_will_make_room_is_named():
    world = World().rack("a", 1).queue("team")
    world.run("low", demand=demand_of(8))
    gang = world.submit("high", demand=demand_of(8), priority=1)
    assert hold_of(world, gang).reasons == (AboutToStart(("low/main",)),)
    world.cycle()
    hold = hold_of(world, gang)
    assert hold.reasons == (WaitingForStops(("low/main",), world.now + 30_000),)
    assert [each.gang for each in hold.in_the_way] == ["low/main"]


def test_quota_that_is_used_up_by_the_gangs_before_it_is_the_reason():
    world = World().rack("a", 2).queue("team", limit=8)
    world.submit("first", demand=demand_of(8))
    gang = world.submit("second", demand=demand_of(8))
    assert hold_of(world, gang).reasons == (OverLimit("team", "gpu_milli", 8_000, 8_000, 8_000),)


def test_a_gang_that_may_use_its_grace_beyond_a_reserved_start_waits_for_that_start():
    world = World().rack("a", 1, 4).queue("team")
    world.run("busy", demand=demand_of(2), seats=[seat("a0", 0, 1)], time_limit_ms=60 * MINUTE, grace_ms=0)
    world.submit("first", demand=demand_of(4), time_limit_ms=60 * MINUTE)
    gang = world.submit("second", demand=demand_of(2), time_limit_ms=59 * MINUTE, grace_ms=30 * MINUTE)
    assert hold_of(world, gang).reasons == (ReservedFor("first/main", world.now + 60 * MINUTE),)


def test_strictly_in_order_the_first_that_waits_is_named_to_all_behind_it():
    world = World("strict_fifo").rack("a", 1).queue("team")
    world.run("busy", demand=demand_of(2), seats=[seat("a0", 0, 1)])
    world.submit("large", demand=demand_of(8))
    small, tiny = world.submit("small", demand=demand_of(2)), world.submit("tiny", demand=demand_of(1))
    assert [hold_of(world, gang).reasons for gang in (small, tiny)] == [(BehindInLine("large/main"),)] * 2


def test_a_cluster_that_has_shrunk_is_told_for_ever():
    world = World().rack("a", 2).queue("team")
    gang = world.submit("pair", demand=demand_of(8, 2), held=True)
    world.take(commands.remove_node(world.state, "a1", world.now))
    world.take(commands.release(world.state, "pair", world.now))
    (reason,) = hold_of(world, gang).reasons
    assert isinstance(reason, NeverFits)
    assert reason.refusal.code == "cluster_too_small"


def test_waiting_for_something_closer_is_a_reason_of_its_own():
    world = World().rack("a", 2).rack("b", 2).queue("team")
    world.run("left", demand=demand_of(8), seats=[whole("a0")])
    world.run("right", demand=demand_of(8), seats=[whole("b0")])
    gang = world.submit("pair", demand=demand_of(8, 2, prefer="rack", prefer_wait_ms=MINUTE))
    assert hold_of(world, gang).reasons == (PreferringCloser("rack", world.now + MINUTE),)


def test_room_in_the_cluster_is_told_apart_from_room_in_one_rack():
    world = World().rack("a", 2).rack("b", 2).queue("team")
    world.run("left", demand=demand_of(8), seats=[whole("a0")])
    world.run("right", demand=demand_of(8), seats=[whole("b0")])
    gang = world.submit("pair", demand=demand_of(8, 2, within="rack"))
    assert hold_of(world, gang).reasons == (TopologyTight("within", "rack", 2, 1),)


def test_gpus_and_cpus_that_lie_on_different_nodes_are_short_together():
    world = World().rack("a", 1, cpu_milli=1000).rack("b", 1, cpu_milli=8000).queue("team")
    world.run("gpus", demand=demand_of(8), seats=[whole("b0")])
    gang = world.submit("both", demand=demand_of(1, amounts=amounts({"cpu_milli": 4000})))
    assert hold_of(world, gang).reasons == (AmountShort("cpu_milli", 4000, 1, 0, 1000, 0),)


def test_all_that_binds_is_told():
    world = World().rack("a", 1, cpu_milli=8000).queue("team", limit=10)
    world.run("other", demand=demand_of(4, amounts=amounts({"cpu_milli": 6000})))
    gang = world.submit("job", demand=demand_of(8, amounts=amounts({"cpu_milli": 4000})))
    kinds = [type(reason) for reason in hold_of(world, gang).reasons]
    assert kinds == [OverLimit, NoCapacity, AmountShort]


def test_when_those_in_the_way_have_left_it_starts():
    world = World().rack("a", 4).queue("team", limit=28)
    runs = [
        world.run(f"r{i}", demand=demand_of(4), seats=[seat(f"a{i}", 0, 1, 2, 3)], time_limit_ms=(9 - i) * MINUTE)
        for i in range(4)
    ]
    gang = world.submit("big", demand=demand_of(8, 2))
    hold = hold_of(world, gang)
    assert [each.gang for each in hold.in_the_way] == ["r3/main", "r2/main"], "those that end first"
    for run in runs[2:]:
        world.down(run, 0)
    world.cycle()
    assert gang.state is GangState.STARTING


def test_a_hold_can_be_stored_and_read_again():
    world = World().rack("a", 1).queue("team", limit=4)
    gang = world.submit("job", demand=demand_of(4), held=True)
    hold = hold_of(world, gang)
    assert msgspec.json.decode(msgspec.json.encode(hold), type=Hold) == hold


def cycle(driver: Driver) -> Plan:
    plan = driver.chosen(Snapshot(driver.state, driver.now))
    driver.take(commit(driver.state, plan, driver.now))
    return plan


POLICIES = ["standard", "strict_fifo", "conservative", "priority", "fair", "sjf", "fifo", "srtf", "las", "srtf_moving"]


@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_waits_when_nothing_more_is_decided_has_a_reason_and_nobody_else_has(policy):
    told = 0
    for seed in range(6):
        driver = Driver(seed, policy, check_every=50)
        for _ in range(4):
            driver.run(40)
            settled = any(not cycle(driver).decisions for _ in range(4))
            snapshot = Snapshot(driver.state, driver.now)
            plan = driver.chosen(snapshot)
            decided = {decision.gang for decision in plan.decisions}
            waiting = {name for line in driver.state.backlog.entries() for name in line} - decided
            for gang in driver.state.gangs.values():
                hold = explain(snapshot, driver.chosen, gang.id)
                assert not isinstance(hold, Refusal)
                if gang.state is not GangState.WAITING:
                    assert hold == Hold(gang.id)
                    continue
                assert hold.reasons
                if gang.id in waiting:
                    assert plan.why is not None
                    assert plan.why(gang) is not None
                assert all(reason.text(driver.now) for reason in hold.reasons)
                assert len(hold.in_the_way) <= 10
                assert not settled or AboutToStart() not in hold.reasons
                told += 1
    assert told > 50


def test_spans_are_told_in_two_units():
    assert [span(ms) for ms in (0, -5, 999, 61_000, 3_600_000, 90_061_000)] == [
        "0s",
        "0s",
        "999ms",
        "1m1s",
        "1h",
        "1d1h",
    ]
