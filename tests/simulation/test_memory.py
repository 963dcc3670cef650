"""What policies remember between cycles changes nothing but speed: forgetting it gives the same journal."""

from __future__ import annotations

import msgspec
import pytest

from corral.core.snapshot import Snapshot
from tests.simulation.changing_cluster import ChangingDriver
from tests.simulation.driver import Driver

STEPS = 250


class Forgetful(Driver):
    """Nothing is remembered from one plan to the next."""

    def _snapshot(self) -> Snapshot:
        self.state.memory.clear()
        return super()._snapshot()


class ForgetfulUpheaval(Forgetful, ChangingDriver):
    pass


def journal_of(kind: type[Driver], seed: int, policy: str) -> bytes:
    driver = kind(seed, policy, check_every=1_000)
    driver.run(STEPS)
    return msgspec.json.encode(driver.journal)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["standard", "priority", "conservative", "srtf", "las"])
def test_forgetting_what_was_worked_out_before_changes_no_decision(policy, seed):
    assert journal_of(ForgetfulUpheaval, seed, policy) == journal_of(ChangingDriver, seed, policy)


@pytest.mark.parametrize("seed", range(6))
def test_nor_where_everyone_is_seated_anew_each_time(seed):
    """As published, these policies know no rest: who loses its work by moving may have to move for ever."""
    assert journal_of(Forgetful, seed, "srtf_moving") == journal_of(Driver, seed, "srtf_moving")
