"""A short slice of the random driver: every law after every event, and everything comes to an end.

A seed that breaks a law is added to SEEDS_TO_REMEMBER when it is fixed. The whole is run by ``make soak``.
"""

import pytest

from corral.core.intake import commands
from corral.sim.research.published import POLICIES
from tests.simulation.changing_cluster import ChangingDriver, check_replay
from tests.simulation.driver import Driver, run_seed

STEPS = 250
SEEDS = 60
OTHERS = sorted(set(POLICIES) - {"standard"})
SEEDS_TO_REMEMBER: tuple[int, ...] = ()


@pytest.mark.parametrize("seed", [*range(SEEDS), *SEEDS_TO_REMEMBER])
def test_no_law_is_broken_under_standard(seed):
    run_seed(seed, STEPS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", OTHERS)
def test_no_law_is_broken_under(policy, seed):
    run_seed(seed, STEPS, policy)


class ChangingCluster(Driver):
    """The same, while nodes are added, removed and changed."""

    added = 0

    def _tick(self) -> None:
        super()._tick()
        kind = self.rng.random()
        if kind < 0.15 and len(self.state.nodes) < 12:
            self.added += 1
            self._add_node(f"new{self.added}", ("z0", "r0"), "H100")
        elif kind < 0.25 and len(self.state.nodes) > 2:
            self._command(commands.remove_node(self.state, self._some_node(), self.now))
        elif kind < 0.4:
            node = self.state.nodes.get(self._some_node())
            if node is not None:
                self._add_node(node.spec.name, node.spec.path, self.rng.choice(("H100", "A100")))


@pytest.mark.parametrize("seed", [*range(10), 30, 42, 66, 98, 132])
def test_no_law_is_broken_while_the_cluster_changes(seed):
    ChangingCluster(seed, check_every=3).run(300)


@pytest.mark.parametrize("seed", range(24))
def test_no_law_is_broken_while_everything_changes(seed):
    driver = ChangingDriver(seed)
    driver.run(STEPS)
    driver.calm()
    check_replay(driver)


@pytest.mark.parametrize(("seed", "steps"), [(9, 1_000), (71, 1_000), (315, 1_000)])
def test_a_seed_of_upheaval_that_broke_a_law_once_breaks_none_now(seed, steps):
    """9: what no queue keeps back was bounded by what the cluster has, for one GPU model at commit and not in the plan.

    71: a borrower took an owner below its guarantee by priority, the owner reclaimed, and so on for ever.

    315: three gangs chased each other: two by priority into the guarantee of another queue, the third by reclaim.
    """
    ChangingDriver(seed).run(steps)
