"""No law of the batcher is broken, whatever queues, workers, arrivals and faults a seed draws."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.batching.driver import run

SEEDS = range(1, 41)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_law_is_broken(seed: int) -> None:
    done = run(seed)
    assert done.counts["items"] == 2_000
    assert done.counts["done"] > 0


def test_the_seeds_reach_every_way_an_item_can_end() -> None:
    total = sum((run(seed, 500).counts for seed in range(1, 60)), start=run(1, 1).counts)
    wanted = {"done", "late", "poison", "withdrawn", "refused_oversized", "refused_full", "refused_late"}
    assert wanted <= set(total)


def test_the_same_seed_decides_the_same_under_any_hash_seed() -> None:
    program = "from tests.batching.driver import run; print(*(run(s, 400).digest.hexdigest() for s in range(1, 9)))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(found) == 1
