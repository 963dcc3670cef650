"""A short slice of the random driver: every law after every event, and everything comes to an end.

A seed that breaks a law is added to SEEDS_TO_REMEMBER when it is fixed. The whole is run by ``make soak``.
"""

import pytest

from corral.policy.catalog import CATALOG
from tests.simulation.driver import run_seed

STEPS = 250
SEEDS = 60
OTHERS = sorted(set(CATALOG) - {"standard"})
SEEDS_TO_REMEMBER: tuple[int, ...] = ()


@pytest.mark.parametrize("seed", [*range(SEEDS), *SEEDS_TO_REMEMBER])
def test_no_law_is_broken_under_standard(seed):
    run_seed(seed, STEPS)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", OTHERS)
def test_no_law_is_broken_under(policy, seed):
    run_seed(seed, STEPS, policy)
