"""A server plans with the policy of its configuration. Published ones come from the simulator, when named."""

import subprocess
import sys

import pytest

from corral.core.intake.refusal import Refusal
from corral.policy.catalog import CATALOG, PUBLISHED_NAMES
from corral.server.planner.process import chosen_policy
from corral.sim.research.published import POLICIES, PUBLISHED
from corral.wire.config import Config, parse_config


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_can_be_configured(name: str):
    config = parse_config({"policy": {"name": name}})
    assert isinstance(config, Config)
    assert not isinstance(chosen_policy(config.policy), Refusal)


def test_names_of_published_policies_are_known_without_loading_them():
    assert PUBLISHED.keys() == set(PUBLISHED_NAMES)
    assert not PUBLISHED.keys() & CATALOG.keys()


def test_a_planner_without_a_published_policy_does_not_load_the_simulator():
    program = (
        "import sys; from corral.server.planner.process import chosen_policy, PolicyChoice\n"
        "chosen_policy(PolicyChoice()); print('corral.sim' in sys.modules)\n"
        "chosen_policy(PolicyChoice(name='las')); print('corral.sim' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
