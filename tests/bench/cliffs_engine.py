"""What a cycle costs where shapes, queues, reservations and elastic gangs are many instead of few: CPU time.

Each part fills a cluster, lets it settle and then turns cycles, one end before each. Beside the time it gives a digest
of every plan, so that two versions of the engine can be compared: they must decide the same.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from hashlib import sha256
from itertools import product
from statistics import median
from time import process_time
from typing import Any

import msgspec

from corral.core import events as e
from corral.core.cluster.resources import GPU_MILLI, Demand, Seat, TaskDemand, amounts
from corral.core.engine import Policy
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec, QueueSpec
from corral.policy.catalog import policy, standard
from tests.bench.workload import CYCLE_MS, HOUR_MS, World

CLUSTER = (2, 5, 5, 5)  # 250 nodes, 2,000 GPUs


class Crowd(World):
    """A world whose jobs are made by the part that uses it."""

    def __init__(self, chosen: Policy | Refusal) -> None:
        super().__init__(CLUSTER)
        assert not isinstance(chosen, Refusal)
        self.policy = chosen

    def add(self, demand: Demand, queue: str, **terms: Any) -> None:
        self.jobs += 1
        spec = JobSpec(queue=queue, gangs=(GangSpec(demand),), **{"time_limit_ms": 4 * HOUR_MS, **terms})
        self.submit([(f"j{self.jobs}", spec, f"u{self.jobs % 7}")])


def cycles(world: World, count: int) -> dict[str, Any]:
    """One end, one cycle, again and again: the median of their CPU time, and what was decided. What is there before is
    not looked through for garbage, as in a planner (``server.garbage``)."""
    world.settle(3)
    gc.collect()
    gc.freeze()
    digest, times, decided = sha256(), [], 0
    for _ in range(count):
        world.now_ms += CYCLE_MS
        world.tell([*world.answers(), *world.an_end(8)])
        began = process_time()
        plan = world.cycle()
        times.append((process_time() - began) * 1000)
        digest.update(msgspec.json.encode((plan.decisions, plan.reservations, plan.look_again_ms)))
        decided += len(plan.decisions)
    gc.unfreeze()
    return {"ms": median(times), "max_ms": max(times), "decided": decided, "digest": digest.hexdigest()[:16]}


def whole(gpus: int, cpu_milli: int = 8_000, tasks: int = 1, tasks_min: int = 0) -> Demand:
    wanted = amounts({"cpu_milli": cpu_milli, "memory_mib": 1024})
    return Demand(task=TaskDemand(gpus=gpus, amounts=wanted), tasks=tasks, tasks_min=tasks_min)


def fill(world: Crowd, queues: list[str]) -> None:
    """Every GPU is taken, by gangs of eight."""
    for at in range(world.free_gpus // 8):
        world.add(whole(8), queues[at % len(queues)])


def shapes(count: int, turns: int, distinct: bool = True) -> dict[str, Any]:
    """This many gangs wait, no two of them alike; or, to compare, all of them alike."""
    world = Crowd(policy("standard"))
    fill(world, world.queues)
    world.settle(2)
    for at in range(count):
        demand = whole(1 + at % 8 if distinct else 8, 8_000 + at if distinct else 8_000)
        world.add(demand, world.queues[at % len(world.queues)])
    return cycles(world, turns)


def queues(tree: tuple[int, int, int], turns: int) -> dict[str, Any]:
    """This many organisations, teams in each, projects in each; every third team and project has a guarantee. In each
    project a gang runs, as far as there is room, and others wait."""
    world = Crowd(policy("standard"))
    leaves = []
    for org, team, project in product(*map(range, tree)):
        path = (f"big{org}", f"t{team}", f"p{project}")
        for depth in (1, 2, 3):
            name = "/".join(path[:depth])
            if name not in world.state.queues.queues:
                terms = amounts({GPU_MILLI: 1_000}) if depth == 3 and (team + project) % 3 == 1 else ()
                world.command(commands.set_queue(world.state, QueueSpec(name=name, guarantee=terms), world.now_ms))
        leaves.append("/".join(path))
    for at in range(2 * len(leaves)):
        world.add(whole(1), leaves[at % len(leaves)], priority=at % 2)
    world.settle(2)
    for at in range(4 * len(leaves)):
        world.add(whole((1, 2, 4, 8)[at % 4]), leaves[at * 7 % len(leaves)], priority=at % 3)
    return cycles(world, turns)


def reservations(count: int, turns: int, chosen: Callable[[], Policy | Refusal] | None = None) -> dict[str, Any]:
    """This many gangs that do not fit have a reserved start; others wait behind them."""
    world = Crowd(standard(depth=count) if chosen is None else chosen())
    fill(world, world.queues)
    world.settle(2)
    for at in range(2 * count):
        world.add(
            whole(8, 8_000, 1 + at % 4), world.queues[at % len(world.queues)], time_limit_ms=(1 + at % 5) * HOUR_MS
        )
    return cycles(world, turns)


def elastic(count: int, turns: int) -> dict[str, Any]:
    """This many gangs that run with one task and could grow, where nothing is free but what has just ended."""
    world = Crowd(policy("standard"))
    nodes = list(world.state.nodes)
    each = 192_000 * len(nodes) // count
    for at in range(count):
        world.add(whole(0, each, 4, 1), world.queues[at % len(world.queues)], restart_cost_ms=1_000)
        gang = f"j{world.jobs}/main"
        seat = (Seat(nodes[at % len(nodes)], 0),)
        world.command([e.GangPlaced(world.now_ms, gang, 1, seat, ())])
    world.tell(world.answers())
    world.now_ms += HOUR_MS
    return cycles(world, turns)
