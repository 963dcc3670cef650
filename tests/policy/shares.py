"""Endless load on a random tree of queues for days: how far what each queue had is from its share, in points.

python -m tests.policy.shares SEEDS [FIRST_SEED]
"""

from __future__ import annotations

import random
import sys

from corral.policy.catalog import standard
from tests.policy.runs import HOUR_MS, MINUTE_MS, Run

DAY_MS = 24 * HOUR_MS
WAITING = 25  # so many gangs of a queue are always in line


def grown(rng: random.Random, depth: int) -> tuple[dict[str, int], dict[str, float]]:
    """Queues -> weight, and those that have no queues below them -> the part of the cluster that each should have."""
    weights: dict[str, int] = {}
    leaves: dict[str, float] = {}

    def grow(parent: str, part: float, left: int) -> None:
        names = [f"{parent}/{n}" if parent else f"q{n}" for n in range(rng.randint(2, 3))]
        given = {name: rng.randint(1, 9) for name in names}
        weights.update(given)
        for at, name in enumerate(names):
            share = part * given[name] / sum(given.values())
            if left > 1 and (at == 0 or rng.random() < 0.3):
                grow(name, share, left - 1)
            else:
                leaves[name] = share

    grow("", 1.0, depth)
    return weights, leaves


def run_days(seed: int, days: int = 2) -> dict[str, tuple[float, float]]:
    """Queue -> (points that it should have, points that it had on the last day). Half of the queues have a backlog as
    old as the run, and everybody has waited too long before long."""
    rng = random.Random(seed)
    weights, leaves = grown(rng, 1 + seed % 4)
    run = Run(standard(patience_ms=rng.choice((MINUTE_MS, HOUR_MS))))
    run.world.rack("a", rng.choice((4, 8)), 8)
    for name, weight in sorted(weights.items()):
        run.world.queue(name, weight=weight)

    def submit(queue: str, count: int) -> None:
        for _ in range(count):
            gpus, length = rng.choice((1, 1, 1, 2, 2, 4, 8)), rng.randrange(10, 61) * MINUTE_MS
            run.submit(queue, gpus, length, user=f"u{rng.randrange(2)}")

    def arrive() -> None:
        for queue in leaves:
            lined_up = run.world.state.backlog.queues.get(queue)
            submit(queue, WAITING - (lined_up.gangs if lined_up is not None else 0))
        run.later(run.now + 5 * MINUTE_MS, arrive)

    for queue in sorted(rng.sample(sorted(leaves), max(1, len(leaves) // 2))):
        submit(queue, 600)
    arrive()
    for day in range(1, days + 1):
        run.served.clear()
        run.until(day * DAY_MS)
    had = run.shares()
    return {queue: (100 * part, had.get(queue, 0.0)) for queue, part in leaves.items()}


def worst(found: dict[str, tuple[float, float]]) -> float:
    return max(abs(had - due) for due, had in found.values())


def main(seeds: int, first: int = 0) -> None:
    for seed in range(first, first + seeds):
        found = run_days(seed)
        off = worst(found)
        print(f"seed {seed}: depth {1 + seed % 4}, {len(found)} queues, at most {off:.2f} points off", flush=True)
        if off > 3:
            for queue, (due, had) in found.items():
                print(f"    {queue}: {due:.1f} due, {had:.1f} had", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
