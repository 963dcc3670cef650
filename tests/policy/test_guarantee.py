"""An owner below its guarantee is served within the grace time of borrowers, always.

Two checks, neither of which asks the code under test who may be evicted. In the random driver, after each
plan: the one owner's gang that waits has been placed or has seats claimed for it, if it would fit on what is
left of the cluster once every borrower has gone. And in a cluster full of borrowers, by the clock.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI, Demand, TaskDemand, amounts
from corral.core.cluster.slots import fits, slots
from corral.core.commit import commit
from corral.core.effects import KillGang, StartGang, effects
from corral.core.intake import commands
from corral.core.model import Gang, GangSpec, GangState, JobSpec, QueueSpec
from corral.core.plan import DropClaim, Evict, Grow, MakeRoom, Place, Plan, Repair
from corral.core.state import seated
from tests.simulation.driver import Driver
from tests.world import World, demand_of

OWNER = "ops"


class OwnerAmongBorrowers(Driver):
    """The random driver with one queue that has a guarantee; it has at most one gang in line at a time."""

    checked = 0
    made_room = 0

    def _queues(self, total: int) -> list[QueueSpec]:
        guarantee = self.rng.randint(total // 2000, total // 1000) * 1000
        return [
            QueueSpec(name="lab", time_share=self.rng.choice((0, 2))),
            QueueSpec(name="lab/red"),
            QueueSpec(name="lab/blue", weight=2),
            QueueSpec(name=OWNER, guarantee=amounts({GPU_MILLI: guarantee})),
        ]

    def _quota(self) -> None:
        """Terms stay as they are: a guarantee that changes between two cycles is another test."""

    def _submit(self) -> None:
        rng = self.rng
        if sum(not gang.is_over for gang in self.state.gangs.values()) > 40:
            return
        self.jobs += 1
        is_owner = not self._waiting() and rng.random() < 0.4
        demand = self._demand()
        while is_owner and not demand.task.gpus:
            demand = self._demand()
        spec = JobSpec(
            queue=OWNER if is_owner else rng.choice(("lab/red", "lab/blue")),
            gangs=(GangSpec(demand),),
            priority=0 if is_owner else rng.choice((0, 0, 1)),
            time_limit_ms=rng.choice((None, 600_000)),
            min_runtime_ms=rng.choice((0, 30_000)),
            grace_ms=rng.choice((0, 5_000, 30_000)),
            restart_cost_ms=rng.choice((0, 10_000)),
            checkpoints=rng.random() < 0.5,
            preemptible=is_owner or rng.random() < 0.8,
        )
        self._command(commands.submit(self.state, f"j{self.jobs}", spec, "ann", self.now))

    def _waiting(self) -> list[Gang]:
        """The owner's gangs that stand in line or wait out a backoff."""
        gangs = self.state.gangs.values()
        return [g for g in gangs if g.queue == OWNER and g.state is GangState.WAITING and not g.claim]

    def _cycle(self) -> None:
        plan = self.chosen(self._snapshot())
        in_line = [gang for gang in self._waiting() if not gang.blockers]
        if len(in_line) == 1 and self._is_owed(in_line[0]):
            self._must_be_served(in_line[0], plan)
        events = commit(self.state, plan, self.now)
        self._must_commit_in_full(plan, events)
        self.take(events)

    def _is_owed(self, gang: Gang) -> bool:
        """Whether it and all that its queue has lie within the guarantee, and it does not choose to wait."""
        if gang.demand.prefer and self.now - gang.waiting_since_ms < gang.demand.prefer_wait_ms:
            return False
        charge = gang.demand.task.gpus * (gang.demand.smallest + gang.demand.spares) * 1000
        queue = self.state.queues.queues[OWNER]
        return queue.used.get(GPU_MILLI, 0) + charge <= dict(queue.spec.guarantee)[GPU_MILLI]

    def _must_be_served(self, gang: Gang, plan: Plan) -> None:
        capacity = without_borrowers(self, plan, gang)
        column = slots(capacity, gang.demand, gang.profile.avoid)
        if not fits(capacity.topology, column, gang.demand, gang.demand.smallest):
            return
        self.checked += 1
        mine = [each for each in plan.decisions if each.gang == gang.id]
        self.made_room += any(isinstance(each, MakeRoom) for each in mine)
        assert mine, f"seed {self.seed}: {gang.id} is owed {gang.demand} and got nothing of {plan.decisions}"


def without_borrowers(driver: Driver, plan: Plan, owner: Gang) -> Capacity:
    """What the owner could have: the cluster without borrowers and whoever leaves, less what the plan gave to
    others before the owner's turn. Seats that were claimed before stay with their claimants."""
    state = driver.state
    capacity, topology = state.capacity.copy(), state.topology
    moved = {each.gang for each in plan.decisions if isinstance(each, Repair)}
    dropped = {each.gang for each in plan.decisions if isinstance(each, DropClaim | Place)}
    told = {each.gang for each in plan.decisions if isinstance(each, Evict)}
    for gang in state.holders.values():
        is_leaving = gang.state is GangState.STOPPING or gang.id in told
        if is_leaving or gang.id in moved or gang.queue != OWNER:
            for n, each in seated(topology, gang.all_seats):
                if gang.state is GangState.STOPPING:
                    capacity.pledge(n, gang.amounts, 1)
                capacity.give_back(n, each.gpus, each.slice_mib, gang.amounts)
    for gang in state.claimants.values():
        if gang.id in dropped:
            for n, each in seated(topology, gang.claim):
                capacity.unclaim(n, each.gpus, gang.amounts)
    for decision in plan.decisions:
        if decision.gang == owner.id or isinstance(decision, DropClaim | Evict):
            continue
        gang = state.gangs[decision.gang]
        given = decision.seats + getattr(decision, "spares", ())
        for n, each in seated(topology, given):
            if isinstance(decision, MakeRoom | Grow):
                capacity.claim(n, each.gpus, gang.amounts)
            else:
                capacity.take(n, each.gpus, each.slice_mib, gang.amounts)
        for victim in decision.victims if isinstance(decision, MakeRoom) else ():
            for n, each in seated(topology, victim.keep):
                capacity.claim(n, each.gpus, state.gangs[victim.gang].amounts)
    return capacity


def run(seed: int) -> OwnerAmongBorrowers:
    driver = OwnerAmongBorrowers(seed, check_every=20)
    driver.run(250)
    return driver


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_in_the_random_driver_an_owner_is_served_in_the_cycle_that_sees_it(first):
    drivers = [run(seed) for seed in range(first, first + 10)]
    assert sum(driver.checked for driver in drivers) >= 20, "the check must have had something to check"
    assert sum(driver.made_room for driver in drivers) >= 1


# ---- by the clock -------------------------------------------------------------------------------------

CYCLE_MS = 1_000


def owner_waits(seed: int) -> tuple[int, int]:
    """(how long the owner's gang waited, the longest grace of a borrower) in a cluster full of borrowers.

    Borrowers leave as late as they may: killed at the end of their grace. New ones arrive all the time.
    """
    rng = random.Random(seed)
    world = World().rack("a", 2, 4).rack("b", 2, 4).queue("owner", guarantee=8).queue("red").queue("blue")
    arrivals = 0

    def borrow() -> int:
        grace = rng.choice((0, 5_000, 30_000))
        demand = demand_of(rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2)))
        terms: dict[str, Any] = dict(priority=rng.choice((0, 0, 5)), preemptible=rng.random() < 0.7)
        queue = rng.choice(("red", "blue"))
        world.submit(f"b{arrivals}", queue, demand, grace_ms=grace, min_runtime_ms=60_000, **terms)
        return grace

    longest = 0
    for _ in range(25):
        longest, arrivals = max(longest, borrow()), arrivals + 1
    world.cycle()
    step(world)
    gpus, tasks = rng.choice(((1, 1), (4, 1), (4, 2), (1, 6), (2, 4)))
    gang = world.submit("mine", "owner", demand_of(gpus, tasks, within=rng.choice(("", "rack"))))
    submitted = world.now
    while gang.state is GangState.WAITING and world.now - submitted < 600_000:
        world.cycle()
        world.wait(CYCLE_MS)
        step(world)
        if rng.random() < 0.5:
            longest, arrivals = max(longest, borrow()), arrivals + 1
    return gang.placed_ms - submitted if gang.holds_seats else 600_000, longest


def step(world: World) -> None:
    """The world does what it is told, as late as it may."""
    for effect in effects(world.state):
        gang = world.state.gangs[effect.gang]
        if isinstance(effect, StartGang):
            world.up(gang)
        elif isinstance(effect, KillGang):
            world.down(gang, 137)


@pytest.mark.parametrize("seed", range(30))
def test_an_owner_starts_within_the_grace_of_borrowers_and_two_cycles(seed):
    waited, grace = owner_waits(seed)
    assert waited <= grace + 2 * CYCLE_MS


def test_an_owner_of_gpus_is_not_kept_from_them_by_borrowers_that_take_all_cpus():
    world = World().rack("a", 1, 2, cpu_milli=4_000).queue("owner", guarantee=2).queue("borrower")
    cpus = Demand(task=TaskDemand(amounts=amounts({"cpu_milli": 4_000})))
    hog = world.run("hog", "borrower", cpus)
    gang = world.submit("mine", "owner", demand_of(amounts=amounts({"cpu_milli": 1_000})))
    world.cycle()
    assert gang.claim
    assert hog.eviction is not None
