"""That nobody could make room for one says nothing about another whose case is different."""

from __future__ import annotations

from corral.core.intake import commands
from corral.core.model import Budget, Gang, GangState
from corral.core.plan import MakeRoom, Plan
from tests.world import World, demand_of, seat, state_of

HOUR_MS = 3_600_000


def made_for(plan: Plan, gang: Gang) -> bool:
    return any(isinstance(each, MakeRoom) and each.gang == gang.id for each in plan.decisions)


def test_a_long_run_over_the_budget_does_not_keep_a_short_one_of_the_same_shape_from_taking_back():
    budget = Budget(4 * HOUR_MS, 1_000 * HOUR_MS)
    made = World().rack("n", 1, 3).queue("owner", guarantee=3, budget=budget).queue("guest")
    made.run("mine", "owner", time_limit_ms=2 * HOUR_MS)
    for at in range(2):
        made.run(f"g{at}", "guest")
    long = made.submit("long", "owner", time_limit_ms=3 * HOUR_MS)
    short = made.submit("short", "owner", time_limit_ms=HOUR_MS)
    plan = made.cycle()
    assert made_for(plan, short)
    assert not made_for(plan, long)


def test_that_one_queue_may_not_have_more_does_not_keep_another_from_what_is_being_left():
    """Nobody has a right to make others leave; one who is leaving anyway frees what the second may claim."""
    made = World().rack("n", 1, 2).queue("full", limit=1).queue("other")
    first = made.run("first", "full")
    leaving = made.run("leaving", "other")
    made.take(commands.cancel(made.state, leaving.job, made.now))
    barred, next_one = made.submit("barred", "full"), made.submit("next", "other")
    plan = made.cycle()
    assert made_for(plan, next_one)
    assert not made_for(plan, barred)
    assert state_of(first) is GangState.RUNNING


def test_that_a_promised_start_bars_a_long_run_does_not_keep_a_short_one_from_making_room():
    made = World().rack("n", 2, 2).queue("team")
    low = made.run("low", "team", demand_of(gpus=2), [seat("n0", 0, 1)], time_limit_ms=HOUR_MS)
    made.run("high", "team", demand_of(gpus=2), [seat("n1", 0, 1)], time_limit_ms=9 * HOUR_MS, priority=9)
    wide = made.submit("wide", "team", demand_of(gpus=2, tasks=2), priority=5)  # is promised both nodes, in 9 hours
    long = made.submit("long", "team", demand_of(gpus=2), time_limit_ms=20 * HOUR_MS, priority=1)
    short = made.submit("short", "team", demand_of(gpus=2), time_limit_ms=HOUR_MS, priority=1)
    plan = made.cycle()
    assert [each.gang for each in plan.reservations] == [wide.id]
    assert made_for(plan, short)
    assert not made_for(plan, long)
    assert state_of(low) is GangState.STOPPING
