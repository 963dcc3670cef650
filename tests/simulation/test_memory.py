"""What policies remember between cycles changes nothing but speed: forgetting it gives the same journal."""

from __future__ import annotations

import msgspec
import pytest

from corral.core.snapshot import Snapshot
from tests.simulation.upheaval import Upheaval

STEPS = 250


class Forgetful(Upheaval):
    """Nothing is remembered from one plan to the next."""

    def _snapshot(self) -> Snapshot:
        self.state.memory.clear()
        return super()._snapshot()


def journal_of(kind: type[Upheaval], seed: int, policy: str) -> bytes:
    driver = kind(seed, policy, check_every=1_000)
    driver.run(STEPS)
    return msgspec.json.encode(driver.journal)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["standard", "priority", "conservative", "srtf", "srtf_moving", "las"])
def test_forgetting_what_was_worked_out_before_changes_no_decision(policy, seed):
    assert journal_of(Forgetful, seed, policy) == journal_of(Upheaval, seed, policy)
