"""Policies that think the whole cluster anew keep to the bounds of queues within one plan."""

import pytest

from corral.core.model import NEVER_MS, Budget
from corral.core.plan import Place
from tests.world import World


@pytest.mark.parametrize("policy", ["srtf", "srsf", "las"])
def test_two_that_together_pass_the_budget_are_not_both_placed_by(policy):
    world = World(policy).rack("a", 1, 2).queue("team", budget=Budget(gpu_ms=100_000, window_ms=NEVER_MS))
    for name in ("first", "second"):
        world.submit(name, time_limit_ms=60_000)
    assert [type(decision) for decision in world.cycle().decisions] == [Place]
