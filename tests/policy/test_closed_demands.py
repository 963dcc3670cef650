"""Closing a demand in every bucket changes no decision: as if every gang had a turn. See ``Cycle._give_up``."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from corral.core import events as e
from corral.core import facts as f
from corral.core.model import JobSpec, QueueSpec
from corral.policy.backfill.backfill import EASY, Backfill
from corral.policy.cycle.closures import Closures
from corral.policy.cycle.order import ByPriority, ByPriorityAndShare
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Standard
from corral.policy.preemption.preemptor import Preemption, Preemptor
from tests.bench import workload

HOUR_MS = workload.HOUR_MS
PARTS = {
    "by priority": Parts(ByPriority(), EASY, Preemption(failures_max=0)),
    "by share, two promises": Parts(
        ByPriorityAndShare(), Backfill(depth=2), Preemption(failures_max=0), patience_ms=HOUR_MS, grows=True
    ),
}


def job(world: workload.World, rng: random.Random) -> tuple[str, JobSpec, str]:
    """With lengths, graces and estimates that are round: much ends at the very moment at which something begins."""
    name, spec, user = world.job()
    if rng.random() < 0.3:
        spec = replace(spec, grace_ms=rng.choice((0, 30_000, 600_000, 1_800_000)))
    if rng.random() < 0.3:
        spec = replace(spec, estimate_ms=rng.choice((HOUR_MS // 2, HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS)))
    return name, spec, user


def journal_of(seed: int, parts: Parts) -> list[e.Event]:
    """A small cluster that is always full, queues without guarantees, and ends at random."""
    rng, world = random.Random(seed), workload.World((1, 2, 2, 4), seed=seed, habits=3)
    found: list[e.Event] = []
    world.policy, world.write = Standard(parts), found.extend
    world.submit(job(world, rng) for _ in range(200))
    for _ in range(25):
        world.now_ms += rng.choice((1000, 60_000, 600_000, 1_800_000, HOUR_MS))
        world.tell([f.Ticked(), *world.answers(), *world.some_ends(rng.choice((0, 1, 1, 2, 5, 10)))])
        world.submit(job(world, rng) for _ in range(rng.choice((0, 1, 2, 5))))
        world.cycle()
    return found


@pytest.mark.parametrize(
    ("order", "seed"),
    [
        ("by priority", 38),
        ("by priority", 45),
        ("by share, two promises", 43),
        ("by share, two promises", 0),
        ("by share, two promises", 35),
    ],
)
def test_giving_up_on_a_demand_changes_no_decision(order, seed, monkeypatch):
    monkeypatch.setattr(workload, "SIZES", ((1, 500), (2, 150), (4, 150), (8, 100), (16, 60), (32, 40), (64, 10)))
    monkeypatch.setattr(workload, "LIMITS", ((1, 40), (2, 30), (4, 15), (12, 10)))
    monkeypatch.setattr(workload, "QueueSpec", lambda **terms: QueueSpec(**{**terms, "guarantee": ()}))
    closed, parts, close = [], PARTS[order], Closures.close_everywhere

    def close_and_tell(closures, demand, verdict, from_ms=0):
        closed.append(demand)
        close(closures, demand, verdict, from_ms)

    monkeypatch.setattr(Closures, "close_everywhere", close_and_tell)
    found = journal_of(seed, parts)
    assert closed, "nothing was given up: this seed tests nothing"
    monkeypatch.setattr(Preemptor, "is_over", lambda _room: False)
    assert journal_of(seed, parts) == found
