"""With endless small arrivals, a gang as large as the cluster starts within the bound that is configured.

The bound is patience + the longest time limit + grace + one cycle, and another cycle where tasks take one to
start. Everything small runs as long as it may.
"""

from __future__ import annotations

import random

import pytest

from corral.core.effects import KillGang, StartGang, effects
from corral.core.model import Gang, GangState
from corral.policy.catalog import standard
from tests.world import World, demand_of

CYCLE_MS = 5_000
PATIENCE_MS = 120_000
LIMIT_MS = 60_000
GRACE_MS = 10_000
BOUND_MS = PATIENCE_MS + LIMIT_MS + GRACE_MS + CYCLE_MS
WAITING = 8


class Flood:
    """Four nodes of four GPUs, and always more small gangs in line than could run."""

    def __init__(
        self, policy: object, seed: int, queue: str, starts_late: bool = False, leaves_late: bool = False
    ) -> None:
        self.starts_late, self.leaves_late = starts_late, leaves_late
        self.rng = random.Random(seed)
        self.world = World(policy, half_life_ms=1_000_000_000)  # type: ignore[arg-type]
        self.world.checks = False
        self.world.rack("a", 2, 4).rack("b", 2, 4).queue("small", weight=10).queue("spent")
        self.arrivals = 0
        if queue == "spent":
            self._spend()
        self.turn()
        self.large = self.world.submit("large", queue, demand_of(4, 4), time_limit_ms=LIMIT_MS)
        self.submitted = self.world.now

    def _spend(self) -> None:
        """A queue that has had far more than its share: by share alone its gangs would come last for long."""
        gang = self.world.run("past", "spent", demand_of(4, 4))
        self.world.wait(10_000_000)
        self.world.down(gang)

    def turn(self) -> None:
        """One cycle of the scheduler, then of the world."""
        while self.world.state.backlog.count < WAITING:
            self._arrive()
        self.world.cycle()
        if not self.starts_late:
            self._carry_out()
        self.world.wait(CYCLE_MS)
        self._carry_out()

    def _carry_out(self) -> None:
        for effect in effects(self.world.state):
            gang = self.world.state.gangs[effect.gang]
            if isinstance(effect, StartGang):
                self.world.up(gang)
            elif isinstance(effect, KillGang) or not self.leaves_late:
                self.world.down(gang, 0)

    def _arrive(self) -> None:
        self.arrivals += 1
        gpus, tasks = self.rng.choice(((1, 1), (1, 1), (2, 1), (1, 2), (4, 1)))
        limit = self.rng.choice((10_000, 30_000, LIMIT_MS))
        terms = dict(time_limit_ms=limit, grace_ms=GRACE_MS, user=f"u{self.arrivals % 3}")
        self.world.submit(f"s{self.arrivals}", "small", demand_of(gpus, tasks), **terms)  # type: ignore[arg-type]

    def wait_of_large(self, most_ms: int) -> int | None:
        """How long the large gang waited for its seats; None if it has none after so long."""
        while self.large.state is GangState.WAITING and self.world.now - self.submitted < most_ms:
            self.turn()
        return None if is_waiting(self.large) else self.large.placed_ms - self.submitted


def is_waiting(gang: Gang) -> bool:
    return gang.state is GangState.WAITING


WORLDS = {
    "starts at once and leaves when warned": dict(),
    "takes a cycle to start": dict(starts_late=True),
    "uses up its grace": dict(leaves_late=True),
    "takes a cycle to start and uses up its grace": dict(starts_late=True, leaves_late=True),
}
QUEUES = {"whose turn has come by share": "small", "of a queue that has had far more than its share": "spent"}


@pytest.mark.parametrize("late", WORLDS.values(), ids=WORLDS.keys())
@pytest.mark.parametrize("queue", QUEUES.values(), ids=QUEUES.keys())
def test_under_standard_the_wait_of_a_gang_stays_within_the_bound_while_small_work(queue, late):
    for seed in range(4):
        flood = Flood(standard(patience_ms=PATIENCE_MS), seed, queue, **late)
        waited = flood.wait_of_large(2 * BOUND_MS)
        assert waited is not None, f"seed {seed}: still waiting after {2 * BOUND_MS} ms"
        # a clock that ticks once a cycle sees the start, the limit and the end of the grace of a run a cycle late each
        slack = CYCLE_MS * (flood.starts_late + 3 * (flood.starts_late and flood.leaves_late))
        assert waited <= BOUND_MS + slack, f"seed {seed}"


def test_without_patience_a_queue_that_has_had_its_share_waits_longer_than_the_bound():
    assert Flood(standard(patience_ms=None), 0, "spent").wait_of_large(2 * BOUND_MS) is None


@pytest.mark.parametrize("policy", ["fifo", "sjf"])
def test_without_reservations_it_starves(policy):
    assert Flood(policy, 0, "small").wait_of_large(4 * BOUND_MS) is None
