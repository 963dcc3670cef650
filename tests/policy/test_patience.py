"""Who has waited too long goes before its turn, within its priority, one at a time and seldom: everybody else keeps
what shares, weights, priorities and guarantees give him."""

from __future__ import annotations

import random

import pytest

from corral.core import facts as f
from corral.core.intake import commands
from corral.core.model import GangState
from corral.core.plan import Place
from corral.policy.backfill.patience import FEW
from corral.policy.catalog import standard
from tests.policy.runs import HOUR_MS, MINUTE_MS, SAVED, Run
from tests.policy.shares import run_days, worst
from tests.world import World, demand_of

DAY_MS = 24 * HOUR_MS


def starts(plan: object) -> list[str]:
    return [each.gang.removesuffix("/main") for each in plan.decisions if isinstance(each, Place)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("weight", [1, 9])
def test_a_backlog_older_than_patience_leaves_every_queue_its_share(weight):
    """600 jobs of one queue at once, and a steady load of another that nobody has to wait long in."""
    rng, run = random.Random(1), Run(standard(patience_ms=DAY_MS))
    run.world.rack("a", 1, 8).queue("heap").queue("steady", weight=weight)
    for _ in range(600):
        run.submit("heap", 1, rng.randrange(30, 90) * MINUTE_MS, user="hugo")

    def arrive() -> None:
        for _ in range(8):
            run.submit("steady", 1, rng.randrange(30, 90) * MINUTE_MS, user="stella")
        run.later(run.now + HOUR_MS, arrive)

    arrive()
    for day in (1, 2, 3):
        run.served.clear()
        run.until(day * DAY_MS)
        assert run.shares()["steady"] == pytest.approx(100 * weight / (weight + 1), abs=3), f"day {day}"


@pytest.mark.parametrize("seed", [1, 2, 3, 4], ids=lambda seed: f"depth {1 + seed % 4}")
def test_in_a_tree_of_queues_where_everybody_has_waited_too_long_all_have_their_shares(seed):
    found = run_days(seed)
    assert worst(found) <= 3, found


def test_who_has_waited_too_long_does_not_pass_a_higher_priority():
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 1, 8).queue("team")
    world.submit("old", demand=demand_of(8))
    world.now += 2 * HOUR_MS
    world.submit("urgent", demand=demand_of(8), priority=100)
    assert starts(world.cycle()) == ["urgent"]


def spent(world: World, queue: str) -> None:
    """A queue that has had far more than its share: by share alone its gangs come last for long."""
    gang = world.run(f"past-{queue}", queue, demand_of(8))
    world.wait(100 * HOUR_MS)
    world.down(gang)


def test_one_goes_before_its_turn_and_the_next_only_when_it_has_been_paid_for():
    """8 of 16 GPUs for an hour are half of them: with one part in a hundred the next such start is 50 hours later."""
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 2, 8).queue("spent").queue("other")
    spent(world, "spent")
    first, second = (world.submit(name, "spent", demand_of(8), time_limit_ms=HOUR_MS) for name in ("first", "second"))
    world.now += 2 * HOUR_MS
    for n in range(2):
        world.submit(f"new{n}", "other", demand_of(8), time_limit_ms=HOUR_MS)
    assert starts(world.cycle()) == ["first", "new0"]
    world.up(first)
    (known,) = world.state.out_of_turn.values()
    assert (known.gang, known.until_ms - world.now) == (first.id, 50 * HOUR_MS)
    world.wait(HOUR_MS)
    world.down(first)
    assert starts(world.cycle()) == ["new1"], "it is not the turn of the queue that has had more"
    (known,) = world.state.out_of_turn.values()
    assert known.until_ms - known.since_ms == 50 * HOUR_MS
    assert second.state is GangState.WAITING


def test_who_went_before_its_turn_and_failed_at_once_keeps_nobody_waiting():
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 1, 8).queue("spent").queue("other")
    spent(world, "spent")
    first = world.submit("first", "spent", demand_of(8), time_limit_ms=100 * HOUR_MS)
    world.submit("second", "spent", demand_of(8), time_limit_ms=HOUR_MS)
    world.now += 2 * HOUR_MS
    world.submit("new", "other", demand_of(8), time_limit_ms=HOUR_MS)
    assert starts(world.cycle()) == ["first"]
    world.up(first)
    world.wait(1000)
    world.down(first, 1)
    world.wait(101_000)
    assert starts(world.cycle()) == ["second"]


def test_who_went_before_its_turn_and_runs_on_keeps_others_waiting_for_longer():
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 2, 8).queue("spent").queue("other")
    spent(world, "spent")
    first = world.submit("first", "spent", demand_of(8), estimate_ms=MINUTE_MS)
    world.submit("second", "spent", demand_of(8), time_limit_ms=HOUR_MS)
    world.now += 2 * HOUR_MS
    blocker = world.submit("blocker", "other", demand_of(8), time_limit_ms=HOUR_MS)
    world.submit("new", "other", demand_of(8), time_limit_ms=HOUR_MS)
    assert starts(world.cycle()) == ["first", "blocker"]
    world.up(first)
    world.up(blocker)
    world.wait(HOUR_MS)  # it was to be over within a minute; others were to wait for 50
    world.down(blocker)
    assert starts(world.cycle()) == ["new"]


def test_whose_turn_it_is_goes_at_nobodys_expense():
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 1, 8).queue("team")
    world.submit("old", demand=demand_of(8))
    world.now += 2 * HOUR_MS
    assert starts(world.cycle()) == ["old"]
    assert not world.state.out_of_turn


def test_a_gang_at_the_limit_of_its_queue_leaves_going_first_to_the_next():
    """The oldest is barred for 150 hours; the next, of a queue that has had too much, goes first instead."""
    world = World(standard(patience_ms=24 * HOUR_MS)).rack("a", 1, 8).queue("capped", limit=2).queue("spent")
    world.queue("other")
    spent(world, "spent")
    world.run("hog", "capped", demand_of(2), time_limit_ms=150 * HOUR_MS)
    world.submit("stuck", "capped", demand_of(2))
    world.submit("old", "spent", demand_of(6), time_limit_ms=HOUR_MS)
    world.wait(25 * HOUR_MS)
    world.submit("new", "other", demand_of(6), time_limit_ms=HOUR_MS)
    assert starts(world.cycle()) == ["old"]


def test_many_gangs_at_the_limit_of_their_queue_leave_going_first_to_the_next():
    """More of them than are looked at one by one have waited longest."""
    world = World(standard(patience_ms=24 * HOUR_MS)).rack("a", 1, 8).queue("capped", limit=2).queue("spent")
    world.queue("other")
    spent(world, "spent")
    world.run("hog", "capped", demand_of(2), time_limit_ms=150 * HOUR_MS)
    for n in range(FEW + 8):
        world.submit(f"stuck{n}", "capped", demand_of(2))
    world.submit("old", "spent", demand_of(6), time_limit_ms=HOUR_MS)
    world.wait(25 * HOUR_MS)
    world.submit("new", "other", demand_of(6), time_limit_ms=HOUR_MS)
    assert starts(world.cycle()) == ["old"]


def test_a_gang_whose_nodes_are_drained_leaves_going_first_to_the_next():
    world = World(standard(patience_ms=24 * HOUR_MS)).rack("a", 2, 8).queue("spent").queue("other")
    spent(world, "spent")
    world.submit("huge", "spent", demand_of(8, 2))
    world.submit("old", "spent", demand_of(8), time_limit_ms=HOUR_MS)
    world.take(commands.drain(world.state, "a1", world.now))
    world.wait(25 * HOUR_MS)
    world.submit("new", "other", demand_of(8), time_limit_ms=HOUR_MS)
    assert starts(world.cycle()) == ["old"]


def test_gangs_that_came_back_into_line_do_not_hide_who_has_waited_longest():
    world = World(standard(patience_ms=12 * HOUR_MS)).rack("a", 3, 8).queue("small").queue("spent")
    spent(world, "spent")
    running = [world.run(f"s{n}", "small", demand_of(1)) for n in range(24)]
    world.submit("large", "spent", demand_of(8, 3))
    world.wait(13 * HOUR_MS)
    for node in ("a0", "a1", "a2"):
        world.take(commands.drain(world.state, node, world.now))
    world.cycle()
    for gang in running:
        world.down(gang, SAVED)
    for node in ("a0", "a1", "a2"):
        world.take(commands.undrain(world.state, node, world.now))
    world.tell(f.Ticked())
    assert world.state.backlog.count == 25, "all of them wait"
    assert starts(world.cycle()) == ["large"]


def test_an_owner_goes_before_who_has_waited_too_long():
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 1, 8).queue("owner", guarantee=8).queue("spent")
    spent(world, "spent")
    world.submit("old", "spent", demand_of(8))
    world.now += 2 * HOUR_MS
    world.submit("mine", "owner", demand_of(8))
    assert starts(world.cycle()) == ["mine"]


def test_an_owner_of_the_whole_organisation_goes_before_who_has_waited_too_long_in_it():
    """Both are within the guarantees of their own queues. What the organisation has left is enough for `mine` alone:
    `old` would be a borrower as seen from outside."""
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 1, 9).queue("org", guarantee=8)
    world.queue("org/a", guarantee=5).queue("org/b", guarantee=1).queue("org/c", guarantee=2)
    world.run("busy", "org/b", demand_of(4), time_limit_ms=150 * HOUR_MS)
    world.submit("old", "org/a", demand_of(5))
    world.now += 2 * HOUR_MS
    world.submit("mine", "org/c", demand_of(2))
    assert starts(world.cycle()) == ["mine"]


def test_who_has_waited_too_long_does_not_pass_an_owner_who_is_behind_others():
    """`next` has the turn. `mine` is behind it, since its organisation uses all that it is guaranteed; from `old`, in
    the same organisation, it could reclaim."""
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 2, 8).queue("org", guarantee=8).queue("other", weight=9)
    world.queue("org/a").queue("org/b", guarantee=8).queue("org/c")
    world.run("busy", "org/c", demand_of(8), time_limit_ms=150 * HOUR_MS)
    world.submit("old", "org/a", demand_of(8))
    world.now += 2 * HOUR_MS
    world.submit("mine", "org/b", demand_of(8))
    world.submit("next", "other", demand_of(8))
    assert starts(world.cycle()) == ["next"]


def test_who_has_waited_too_long_does_not_use_the_right_of_an_owner_of_its_own_queue():
    """One of `mixed` is within its guarantee and goes first; another, which is not, goes before nobody for that."""
    world = World(standard(patience_ms=HOUR_MS)).rack("a", 2, 4).queue("mixed", guarantee=1).queue("other")
    world.submit("large", "mixed", demand_of(3, 2), priority=1)
    world.submit("small", "mixed", demand_of(1), priority=1)
    world.submit("urgent", "other", demand_of(3), priority=2)
    world.now += 2 * HOUR_MS
    assert starts(world.cycle()) == ["small", "urgent"]


def test_who_went_before_its_turn_is_remembered_by_an_image():
    from corral.core.image import from_image, take_image
    from tests.world import image

    world = World(standard(patience_ms=HOUR_MS)).rack("a", 1, 8).queue("spent").queue("other")
    spent(world, "spent")
    world.submit("old", "spent", demand_of(8))
    world.now += 2 * HOUR_MS
    world.submit("new", "other", demand_of(8))
    assert starts(world.cycle()) == ["old"]
    assert world.state.out_of_turn
    assert image(from_image(take_image(world.state))) == image(world.state)
