"""The cluster, the queues and the work that the engine is timed on, and what happens there as time passes.

Chance, the clock and the agents live here; the engine knows none of them. Measures nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import GPU_MILLI, Demand, Gpu, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.effects import Effect, StartGang
from corral.core.engine import Policy, apply_all, react
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, GangState, JobSpec, QueueSpec, Settings
from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.catalog import policy
from corral.server.gc_tuning import set_survivors_aside

HOUR_MS = 3_600_000
START_MS = 1_000 * 24 * HOUR_MS
CYCLE_MS = 1_000  # how far apart two cycles are

#: (GPUs, how many of 10,000 gangs): most want one GPU, then 2, 4 and 8; beyond a node they thin out quickly.
SIZES = (
    (1, 7000),
    (2, 900),
    (4, 900),
    (8, 850),
    (16, 180),
    (32, 90),
    (64, 50),
    (128, 20),
    (256, 7),
    (512, 3),
)
#: (CPUs, GiB) for each GPU, and how many of ten ask for it.
SIDES = (((8, 64), 5), ((4, 32), 2), ((12, 96), 2), ((16, 160), 1))
#: (hours, how many of 100): round numbers, as people give them.
LIMITS = ((1, 20), (4, 30), (12, 15), (24, 25), (72, 10))
#: (priority, how many of 100)
PRIORITIES = ((0, 30), (10, 69), (20, 1))
HABITS = 6  # shapes of job that one user submits again and again

#: The cluster of the main benchmark: zones, spines in each, racks in each, nodes in each.
MAIN = (5, 5, 5, 10)
LARGE = (5, 10, 10, 10)
RUNNING = 4_000  # about this many gangs fill the main cluster


def pick(rng: random.Random, weighed: Sequence[tuple[Any, int]]) -> Any:
    return rng.choices([value for value, _ in weighed], [weight for _, weight in weighed])[0]


def demand_of(gpus: int, side: tuple[int, int], within: str = "") -> Demand:
    each = min(gpus, 8)
    wanted = amounts({"cpu_milli": side[0] * each * 1000, "memory_mib": side[1] * each * 1024})
    return Demand(task=TaskDemand(gpus=each, amounts=wanted), tasks=max(1, gpus // 8), within=within)


class World:
    """A cluster with its queues and users, and an engine that gets all facts about it."""

    def __init__(self, shape: tuple[int, ...], seed: int = 1, habits: int = HABITS) -> None:
        chosen = policy("standard")
        assert not isinstance(chosen, Refusal)
        self.rng, self.now_ms, self.habits = random.Random(seed), START_MS, habits
        self.state = State(Settings(levels=("zone", "spine", "rack")))
        self.policy: Policy = chosen
        self.write: Callable[[Sequence[e.Event]], None] = self._count
        self.events = self.jobs = 0
        self.running: list[str] = []  # gangs that may be ended; some have ended meanwhile
        self.owed: list[Effect] = []
        self._shapes: dict[tuple[int, tuple[int, int], str], Demand] = {}
        self._add_nodes(shape)
        self.queues = self._add_queues(8 * len(self.state.nodes))
        self._habits: dict[tuple[str, str], list[tuple[Demand, int, int]]] = {}

    def _count(self, events: Sequence[e.Event]) -> None:
        self.events += len(events)

    def command(self, answer: list[e.Event] | Refusal) -> None:
        assert not isinstance(answer, Refusal), answer
        self.take(answer)

    def take(self, events: Sequence[e.Event]) -> None:
        applied = apply_all(self.state, events, self.now_ms)
        self.write(applied.events)
        self.owed += applied.effects

    def _add_nodes(self, shape: tuple[int, ...]) -> None:
        zones, spines, racks, nodes = shape
        have = amounts({"cpu_milli": 192_000, "memory_mib": 2_000 * 1024})
        for at in range(zones * spines * racks * nodes):
            rack, spine, zone = at // nodes, at // nodes // racks, at // nodes // racks // spines
            gpus = tuple(Gpu(f"n{at}-{i}", "H100", 81_920) for i in range(8))
            spec = NodeSpec(f"n{at}", gpus, have, (f"z{zone}", f"s{spine}", f"r{rack}"))
            self.command(commands.add_node(self.state, spec, self.now_ms))

    def _add_queues(self, gpus: int) -> list[str]:
        """Ten organisations of ten teams. Every second organisation and some of its teams have guarantees."""
        found = []
        for org in range(10):
            share = amounts({GPU_MILLI: gpus * 1000 // 20}) if org % 2 == 0 else ()
            self.command(commands.set_queue(self.state, QueueSpec(name=f"o{org}", guarantee=share), self.now_ms))
            for team in range(10):
                spec = QueueSpec(
                    name=f"o{org}/t{team}",
                    guarantee=amounts({GPU_MILLI: gpus * 1000 // 100}) if share and team < 3 else (),
                    limit=amounts({GPU_MILLI: max(600_000, gpus * 1000 // 16)}) if team % 3 == 2 else (),
                    user_limit=amounts({GPU_MILLI: max(512_000, gpus * 1000 // 20)}) if team % 5 == 4 else (),
                    weight=1 + team % 3,
                )
                self.command(commands.set_queue(self.state, spec, self.now_ms))
                found.append(spec.name)
        return found

    # ---- work ----------------------------------------------------------------------------------------------

    def _any_shape(self) -> tuple[Demand, int, int]:
        """What a job wants, its priority and its time limit, drawn from all there is."""
        rng = self.rng
        gpus, side, within = pick(rng, SIZES), pick(rng, SIDES), ""
        if 16 <= gpus <= 128 and rng.random() < 0.3:
            within = "spine"
        key = (gpus, side, within)
        demand = self._shapes.setdefault(key, demand_of(*key))
        return demand, pick(rng, PRIORITIES), pick(rng, LIMITS) * HOUR_MS

    def _shape(self, queue: str, user: str) -> tuple[Demand, int, int]:
        if not self.habits:
            return self._any_shape()
        mine = self._habits.get((queue, user))
        if mine is None:
            mine = self._habits[queue, user] = [self._any_shape() for _ in range(self.habits)]
        return self.rng.choice(mine)

    def job(self) -> tuple[str, JobSpec, str]:
        """A new job of some user: its name, what it wants, its user."""
        self.jobs += 1
        queue, user = self.rng.choice(self.queues), f"u{self.rng.randrange(10)}"
        demand, priority, limit_ms = self._shape(queue, user)
        spec = JobSpec(queue=queue, gangs=(GangSpec(demand),), priority=priority, time_limit_ms=limit_ms)
        return f"j{self.jobs}", spec, user

    def submit(self, jobs: Iterable[tuple[str, JobSpec, str]]) -> None:
        for name, spec, user in jobs:
            self.command(commands.submit(self.state, name, spec, user, self.now_ms))

    def submit_backlog(self, count: int) -> None:
        """This many jobs, submitted evenly over the last 36 hours."""
        for at in range(count):
            self.now_ms = START_MS - 36 * HOUR_MS * (count - at) // count
            self.submit([self.job()])
        self.now_ms = START_MS

    # ---- what happens --------------------------------------------------------------------------------------

    def some_ends(self, count: int) -> list[f.Fact]:
        """Reports that this many running gangs, drawn evenly from all that run, are done."""
        found: list[f.Fact] = []
        not_yet: list[str] = []
        rng, running = self.rng, self.running
        while len(found) < count and running:
            at = rng.randrange(len(running))
            running[at], running[-1] = running[-1], running[at]
            gang = self.state.gangs[running.pop()]
            if gang.state is GangState.RUNNING:
                found.append(f.TasksDown(gang.id, gang.attempt, gang.everyone))
            elif gang.state is GangState.STARTING:
                not_yet.append(gang.id)
        running += not_yet
        return found

    def an_end(self, gpus: int) -> list[f.Fact]:
        """A report that a running gang of this many GPUs, or of the next size below, is done; which one is drawn."""
        gangs, least = self.state.gangs, gpus * 1000
        here = [gangs[name] for name in self.running if gangs[name].state is GangState.RUNNING]
        size = max((gang.gpu_milli for gang in here if gang.gpu_milli <= least), default=0)
        alike = [gang for gang in here if gang.gpu_milli == size]
        if not alike:
            return []
        gang = self.rng.choice(alike)
        self.running.remove(gang.id)
        return [f.TasksDown(gang.id, gang.attempt, gang.everyone)]

    def answers(self) -> list[f.Fact]:
        """What agents report for the effects owed: who was to start runs, who was warned saved and left."""
        found: list[f.Fact] = []
        for effect in self.owed:
            gang = self.state.gangs[effect.gang]
            if isinstance(effect, StartGang):
                found.append(f.TasksUp(gang.id, gang.attempt, gang.everyone))
                self.running.append(gang.id)
            else:
                found.append(f.TasksDown(gang.id, gang.attempt, gang.everyone, 85))
        self.owed = []
        return found

    def tell(self, facts: Iterable[f.Fact]) -> None:
        for fact in facts:
            self.take(react(self.state, fact, self.now_ms))

    def cycle(self) -> Plan:
        plan = self.policy(Snapshot(self.state, self.now_ms))
        self.take(commit(self.state, plan, self.now_ms))
        return plan

    def settle(self, rounds: int = 6) -> None:
        """Let everything that is owed happen, and plan until little changes."""
        for _ in range(rounds):
            self.tell(self.answers())
            self.now_ms += CYCLE_MS
            self.cycle()
        self.tell(self.answers())

    @property
    def free_gpus(self) -> int:
        return sum(mask.bit_count() for mask in self.state.capacity.free)


def full_cluster(pending: int, habits: int = HABITS) -> World:
    """The main cluster, full, with this many gangs waiting; garbage is collected as in a planner."""
    world = World(MAIN, habits=habits)
    world.submit_backlog(pending + RUNNING)
    world.settle()
    set_survivors_aside()
    return world
