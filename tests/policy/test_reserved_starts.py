"""Who was promised a start stays first of its pool until it has started, whatever becomes of shares."""

from __future__ import annotations

import pytest

from corral.core import events as e
from corral.core.intake import commands
from corral.core.model import GangState
from corral.policy.catalog import standard
from tests.world import World, demand_of, state_of

HOUR = 3_600_000


def promised(**queue: int) -> World:
    """Queue a has had more than its share. Its large gang was promised a start, for nobody else waited then."""
    world = World(standard()).rack("a", 1).queue("a").queue("b", **queue)
    past = world.run("past", "a", demand_of(8), time_limit_ms=4 * HOUR)
    world.wait(3 * HOUR)
    world.down(past)
    world.run("now", "b", demand_of(7), time_limit_ms=HOUR, preemptible=False)
    world.submit("large", "a", demand_of(8), time_limit_ms=HOUR)
    plan = world.cycle()
    assert [each.gang for each in plan.reservations] == ["large/main"]
    assert list(world.state.reservations) == ["large/main"]
    return world


def test_a_queue_with_a_smaller_share_does_not_take_what_is_kept():
    world = promised()
    small = world.submit("small", "b", demand_of(1), time_limit_ms=2 * HOUR)
    plan = world.cycle()
    assert state_of(small) is GangState.WAITING
    assert [each.gang for each in plan.reservations] == ["large/main"]


def test_it_may_pass_if_it_is_gone_by_then():
    world = promised()
    small = world.submit("small", "b", demand_of(1), time_limit_ms=HOUR // 2)
    world.cycle()
    assert state_of(small) is GangState.STARTING


@pytest.mark.parametrize(("queue", "priority"), [({}, 5), ({"guarantee": 8}, 0)], ids=["priority", "owner"])
def test_who_has_a_right_goes_before(queue, priority):
    world = promised(**queue)
    small = world.submit("small", "b", demand_of(1), time_limit_ms=2 * HOUR, priority=priority)
    world.cycle()
    assert state_of(small) is GangState.STARTING


def test_a_promise_is_written_once_and_void_when_the_gang_leaves_the_line():
    world = promised()
    world.wait(1_000)
    world.cycle()
    assert len([event for event in world.journal if isinstance(event, e.StartsPromised)]) == 1
    world.take(commands.cancel(world.state, "large", world.now))
    assert not world.state.reservations
