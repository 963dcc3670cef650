"""Histories to measure, put together by hand or drawn by a seed. Times are in seconds, for they are read by people."""

from __future__ import annotations

import random

from corral.sim.history import History, JobHistory, RunRecord

S = 1_000  # milliseconds


def run(placed: int, started: int | None, ended: int | None, gpus: int = 1, node: str = "a1", **terms) -> RunRecord:
    lost_gpu_s = terms.pop("lost_gpu_s", 0)
    nodes = terms.pop("nodes", (node,))
    return RunRecord(
        terms.pop("gang", "j/main"),
        terms.pop("attempt", 1),
        placed * S,
        gpus * S,
        nodes,
        None if started is None else started * S,
        None if ended is None else ended * S,
        lost_gpu_ms=lost_gpu_s * S,
        **terms,
    )


def job(name: str, submitted: int, gpus: int, runs=(), ended: int | None = None, **terms) -> JobHistory:
    outcome = terms.pop("outcome", "" if ended is None else "succeeded")
    team = terms.pop("team", "team")
    return JobHistory(
        name,
        team,
        "ann",
        submitted * S,
        gpus * 1000,
        list(runs),
        None if ended is None else ended * S,
        outcome,
        **terms,
    )


def history(*jobs: JobHistory, end: int, nodes: dict[str, int] | None = None) -> History:
    """``nodes``: how many GPUs each has from the beginning."""
    has = {"a1": 4} if nodes is None else nodes
    return History(
        jobs={one.id: one for one in jobs},
        capacity=[(0, 1000 * sum(has.values()))],
        end_ms=end * S,
        nodes={name: [(0, 1000 * gpus)] for name, gpus in has.items()},
    )


def random_history(seed: int) -> History:
    """A few jobs of a few teams that never fill the nodes; all times are whole seconds below 100."""
    rng = random.Random(seed)
    names = [f"n{n}" for n in range(3)]
    jobs = []
    for number in range(rng.randint(0, 8)):
        at, gpus, runs = rng.randint(0, 30), rng.choice([1, 2, 4]), []
        submitted, is_over = at, rng.random() < 0.8
        for attempt in range(1, rng.randint(0, 3) + 1):
            placed = at + rng.randint(0, 10)
            started = placed + rng.randint(0, 3) if rng.random() < 0.9 else None
            at = max(placed, started or 0) + rng.randint(0, 12)
            ran = 0 if started is None else at - started
            lost = rng.randint(0, ran) * gpus if rng.random() < 0.4 else 0
            nodes = tuple(rng.choice(names) for _ in range(gpus if rng.random() < 0.3 else 1))
            runs.append(run(placed, started, at, gpus, nodes=nodes, attempt=attempt, lost_gpu_s=lost))
        if runs and not is_over and rng.random() < 0.5:
            runs[-1].ended_ms, runs[-1].lost_gpu_ms = None, 0
        ended = at + rng.randint(0, 3) if is_over else None
        jobs.append(job(f"j{number}", submitted, gpus, runs, ended, team=rng.choice("xyz")))
    return history(*jobs, end=100, nodes=dict.fromkeys(names, 12))
