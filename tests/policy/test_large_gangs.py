"""Nothing small holds up something large for ever: not under the limit of a queue or a user, not behind one that cannot
start, not within the guarantee of its own queue. Everything small runs as long as it may."""

from __future__ import annotations

import random

import pytest

from corral.core.intake import commands
from corral.core.model import Gang
from corral.core.plan import MakeRoom, Place
from corral.policy.backfill.backfill import Backfill
from corral.policy.catalog import standard
from corral.policy.cycle.order import ByPriority
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Standard
from corral.policy.explain.reasons import ReservedFor
from corral.policy.preemption.preemptor import Preemption
from tests.policy.runs import HOUR_MS, MINUTE_MS, Run
from tests.world import World, demand_of, seat

LONGEST_MS = HOUR_MS + 15 * MINUTE_MS  # of what is small; and for the few that were there before


def flood(run: Run, queue: str, gpus: int, user: str = "ann", seed: int = 0) -> None:
    """Always a few more single GPUs wanted by a queue than it could have."""
    rng = random.Random(seed)

    def arrive() -> None:
        while len([g for g in run.world.state.gangs.values() if g.queue == queue and not g.is_over]) < gpus + 2:
            run.submit(queue, 1, rng.randrange(10, 61) * MINUTE_MS, user=user)
        run.later(run.now + 2 * MINUTE_MS, arrive)

    arrive()


def wait_of(run: Run, gang: Gang, most_ms: int) -> int:
    """How long a gang waits, at most so long."""
    submitted = run.now
    run.until(submitted + most_ms, lambda: gang.job in run.started)
    return run.started.get(gang.job, run.now) - submitted


LIMITS = {
    "of its queue": dict(limit=8),
    "of its user": dict(user_limit=8),
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("depth", [1, 2])
def test_a_large_gang_has_its_part_of_the_limit(limits, depth):
    for seed in range(3):
        run = Run(standard())
        run.world.rack("a", 2, 8)
        queue = "q" if depth == 1 else "org/q"
        if depth == 2:
            run.world.queue("org")
        run.world.queue(queue, **limits)
        flood(run, queue, 8, seed=seed)
        run.until(3 * HOUR_MS)
        large = run.submit(queue, 8, HOUR_MS)
        assert wait_of(run, large, 40 * HOUR_MS) <= LONGEST_MS, f"seed {seed}"


def test_a_large_gang_has_its_part_of_the_limit_of_a_queue_above_it():
    run = Run(standard())
    run.world.rack("a", 2, 8).queue("org", limit=8).queue("org/a", weight=4).queue("org/b")
    flood(run, "org/a", 8)
    run.until(3 * HOUR_MS)
    large = run.submit("org/b", 8, HOUR_MS)
    assert wait_of(run, large, 40 * HOUR_MS) <= LONGEST_MS


def test_a_large_gang_has_its_part_of_what_others_lend():
    run = Run(standard())
    run.world.rack("a", 2, 8).queue("q").queue("keeps", guarantee=8, lend=0)
    flood(run, "q", 8)
    run.until(3 * HOUR_MS)
    large = run.submit("q", 8, HOUR_MS)
    assert wait_of(run, large, 40 * HOUR_MS) <= LONGEST_MS


def test_a_part_of_a_limit_that_waits_for_nodes_is_kept_until_it_has_them():
    """The limit leaves room, the nodes do not yet: meanwhile nobody of the queue takes of the limit what it needs."""
    world = World().rack("a", 2, 8).queue("q", limit=9).queue("other")
    world.run("wall", "other", demand_of(8), [seat("a0", *range(8))], time_limit_ms=HOUR_MS)
    world.run("rest", "other", demand_of(4), [seat("a1", *range(4))], time_limit_ms=3 * HOUR_MS)
    world.submit("large", "q", demand_of(8), time_limit_ms=HOUR_MS)
    small = [world.submit(f"s{n}", "q", demand_of(1), time_limit_ms=5 * HOUR_MS) for n in range(3)]
    plan = world.cycle()
    assert [each.gang for each in plan.reservations] == ["large/main"]
    assert [each.gang for each in plan.decisions if isinstance(each, Place)] == [small[0].id]
    assert [(each.gang, each.queue) for each in plan.parts] == [("large/main", "q")]


def test_who_is_gone_in_time_or_leaves_the_part_may_pass_and_the_others_are_told_why():
    world = World().rack("a", 2, 8).queue("q", limit=9)
    world.run("holds", "q", demand_of(4), time_limit_ms=HOUR_MS, grace_ms=0)
    world.submit("large", "q", demand_of(8), time_limit_ms=HOUR_MS, grace_ms=0)
    world.submit("short", "q", demand_of(1), time_limit_ms=HOUR_MS, grace_ms=0)
    world.submit("beside", "q", demand_of(1), time_limit_ms=2 * HOUR_MS, grace_ms=0)
    late = world.submit("late", "q", demand_of(1), time_limit_ms=2 * HOUR_MS, grace_ms=0)
    hold = world.hold(late.id)
    plan = world.cycle()
    assert sorted(each.gang for each in plan.decisions if isinstance(each, Place)) == ["beside/main", "short/main"]
    assert hold.reasons == (ReservedFor("large/main", world.now + HOUR_MS),)


def test_an_elastic_gang_grows_into_no_part_that_is_kept():
    world = World().rack("a", 2, 8).queue("q", limit=9)
    world.run("holds", "q", demand_of(4), time_limit_ms=HOUR_MS, grace_ms=0)
    world.submit("large", "q", demand_of(8), time_limit_ms=HOUR_MS, grace_ms=0)
    world.submit("elastic", "q", demand_of(1, 4, tasks_min=1), time_limit_ms=2 * HOUR_MS, grace_ms=0)
    plan = world.cycle()
    (placed,) = plan.decisions
    assert isinstance(placed, Place)
    assert len(placed.seats) == 1


def test_behind_one_that_cannot_start_the_next_is_promised_a_start():
    """A node is drained: who needs all of them waits for it, and the next large gang does not wait for that."""
    for seed in range(3):
        run = Run(standard())
        run.world.rack("a", 4, 8).queue("q")
        flood(run, "q", 32, seed=seed)
        run.until(3 * HOUR_MS)
        run.submit("q", 32, HOUR_MS, name="huge")
        run.world.take(commands.drain(run.world.state, "a3", run.world.now))
        large = run.submit("q", 24, HOUR_MS, name="large")
        assert wait_of(run, large, 100 * HOUR_MS) <= LONGEST_MS, f"seed {seed}"
        assert "huge" not in run.started


def test_behind_one_that_would_miss_its_deadline_the_next_is_promised_a_start():
    world = World().rack("a", 1, 8).queue("q")
    world.run("holds", "q", demand_of(8), time_limit_ms=HOUR_MS, grace_ms=0)
    late, brief = world.now + HOUR_MS + MINUTE_MS, 5 * MINUTE_MS
    world.submit("hurried", "q", demand_of(8), deadline_ms=late, estimate_ms=brief, time_limit_ms=brief, grace_ms=0)
    world.submit("patient", "q", demand_of(8), time_limit_ms=brief, grace_ms=0)
    assert [each.gang for each in world.cycle().reservations] == ["patient/main"]


def test_a_large_gang_within_its_guarantee_waits_no_longer_than_the_small_ones_before_it():
    for seed in range(3):
        run = Run(standard())
        run.world.rack("a", 2, 8).queue("owner", guarantee=8).queue("other", weight=9)
        flood(run, "owner", 8, seed=seed)
        flood(run, "other", 16, user="bob", seed=seed + 10)
        run.until(3 * HOUR_MS)
        large = run.submit("owner", 8, HOUR_MS)
        assert wait_of(run, large, 30 * HOUR_MS) <= LONGEST_MS, f"seed {seed}"


def test_what_was_kept_for_one_that_starts_after_all_keeps_nobody_waiting():
    world = World().rack("a", 1, 4).queue("b", guarantee=2)
    for name, gpus in (("first", 1), ("large", 2), ("last", 1)):
        world.submit(name, "b", demand_of(gpus))
    assert len([each for each in world.cycle().decisions if isinstance(each, Place)]) == 3


def test_a_promised_start_is_kept_when_a_queue_at_its_limit_makes_room_for_its_own():
    world, once = World().rack("a", 2, 8).queue("q", guarantee=8, limit=8).queue("other"), dict(preemptible=False)
    world.run("ends", "other", demand_of(4), [seat("a0", *range(4))], time_limit_ms=10 * MINUTE_MS, grace_ms=0, **once)
    world.run("low", "q", demand_of(8), [seat("a1", *range(8))], priority=0, time_limit_ms=24 * HOUR_MS)
    world.submit("promised", "other", demand_of(8), priority=20, time_limit_ms=HOUR_MS, grace_ms=0)
    world.submit("high", "q", demand_of(4), priority=10, time_limit_ms=24 * HOUR_MS)
    plan = world.cycle()
    made = [each for each in plan.decisions if isinstance(each, MakeRoom) and each.gang == "high/main"]
    assert [seat.node for each in made for seat in each.seats] == ["a1"]
    assert [(each.gang, each.at_ms - world.now) for each in plan.reservations] == [("promised/main", 10 * MINUTE_MS)]


def test_room_is_made_where_no_reservation_is_delayed_however_long_the_victims_need():
    """The cheapest victim leaves in time for no reservation, the next one needs longer and is late for another one."""
    parts = Parts(ByPriority(), Backfill(depth=2), Preemption())
    world = World(Standard(parts)).rack("a", 2, 2).rack("b", 1, 1).queue("q")
    for n, (length_ms, grace_ms) in enumerate(((100_000, 10_000), (110_000, 30_000))):
        fixed, victim = [seat(f"a{n}", 0)], [seat(f"a{n}", 1)]
        world.run(f"fixed{n}", "q", seats=fixed, time_limit_ms=length_ms, grace_ms=0, preemptible=False)
        cost_ms = 1_000 * n
        world.run(f"victim{n}", "q", seats=victim, time_limit_ms=60_000, grace_ms=grace_ms, restart_cost_ms=cost_ms)
    dear = world.run("dear", "q", seats=[seat("b0", 0)], restart_cost_ms=1_000_000)
    heads = [world.submit(f"head{n}", "q", demand_of(2), priority=5).id for n in range(2)]
    gang = world.submit("high", "q", priority=1, time_limit_ms=95_000, grace_ms=0)
    plan = world.cycle()
    assert [each.gang for each in plan.reservations] == heads
    (decision,) = plan.decisions
    assert isinstance(decision, MakeRoom)
    assert (decision.gang, [victim.gang for victim in decision.victims]) == (gang.id, [dear.id])
