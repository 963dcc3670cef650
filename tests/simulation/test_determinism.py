"""Law 6: the same seed gives the same journal, byte for byte; replaying a journal gives the same state."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import msgspec
import pytest

from corral.core import events as e
from corral.core.apply import apply
from corral.core.laws import check
from corral.core.state import State
from tests.simulation.driver import Driver
from tests.world import World, demand_of, image, seat

SEEDS = (3, 17, 40)
STEPS = 250
POLICIES = ("standard", "las", "conservative")

_PRINT_DIGESTS = """
from tests.simulation.test_determinism import SEEDS, POLICIES, digest
for policy in POLICIES:
    for seed in SEEDS:
        print(policy, seed, digest(seed, policy))
"""


_PRINT_VICTIMS = """
from tests.simulation.test_determinism import victims
print(victims())
"""


def journal_of(seed: int, policy: str = "standard") -> tuple[Driver, bytes]:
    driver = Driver(seed, policy, check_every=1_000)
    driver.run(STEPS)
    return driver, msgspec.json.encode(driver.journal)


def digest(seed: int, policy: str) -> str:
    return hashlib.sha256(journal_of(seed, policy)[1]).hexdigest()


def victims() -> list[str]:
    """The evicted gangs, in order, when eight of equal cost make room for one."""
    world = World().rack("a", 1, 8).queue("team")
    for gpu in range(8):
        world.run(f"j{gpu}", seats=[seat("a0", gpu)])
    world.submit("large", demand=demand_of(gpus=8), priority=1)
    world.cycle()
    return [event.gang for event in world.journal if isinstance(event, e.GangEvicted)]


def printed_under(hash_seed: int, program: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_same_seed_gives_the_same_journal_under_any_hash_seed():
    here = "".join(f"{policy} {seed} {digest(seed, policy)}\n" for policy in POLICIES for seed in SEEDS)
    for hash_seed in (0, 1, 4242):
        assert printed_under(hash_seed, _PRINT_DIGESTS) == here


def test_victims_are_told_in_the_same_order_under_any_hash_seed():
    assert len(victims()) == 8
    assert {printed_under(hash_seed, _PRINT_VICTIMS) for hash_seed in (0, 1)} == {f"{victims()}\n"}


def test_different_seeds_give_different_journals():
    assert len({digest(seed, "standard") for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", range(8))
def test_replaying_the_journal_gives_the_same_state(seed):
    driver, encoded = journal_of(seed)
    again = State(driver.state.settings)
    for event in msgspec.json.decode(encoded, type=list[e.Event]):
        apply(again, event)
    check(again)
    there, here = image(again), image(driver.state)
    for part, value in here.items():
        assert there[part] == value, part


@pytest.mark.parametrize("seed", range(3))
def test_the_state_after_half_a_journal_goes_on_to_the_same_end(seed):
    """A state rebuilt in the middle, as after a restart, takes the rest like the one that never stopped."""
    driver, _ = journal_of(seed)
    rebuilt, whole = State(driver.state.settings), State(driver.state.settings)
    middle = len(driver.journal) // 2
    for at, event in enumerate(driver.journal):
        apply(whole, event)
        if at < middle:
            apply(rebuilt, event)
    for event in driver.journal[middle:]:
        apply(rebuilt, event)
    assert image(rebuilt) == image(whole) == image(driver.state)
