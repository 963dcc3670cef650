"""How many nodes a fleet should have: as many as who waits would sit on, shape by shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.apply import apply
from corral.core.cluster.resources import GPU_MILLI, Demand, Gpu, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.engine import apply_all, react
from corral.core.fleets.fleets import Fleet, Fleets, FleetSpec, NodeShape, Pilot
from corral.core.fleets.outlook import could_come
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.catalog import policy as named_policy
from corral.policy.demand import needs

NOW = 1_000_000
H100 = NodeShape(tuple(Gpu(f"g{n}", "H100", 81_920) for n in range(8)), amounts({"cpu_milli": 64_000}))


class World:
    def __init__(self, **queue: Any) -> None:
        self.state, self.fleets = State(Settings()), Fleets()
        policy = named_policy("standard")
        assert not isinstance(policy, Refusal)
        self.policy, self.jobs = policy, 0
        self.take([e.QueueSet(NOW, QueueSpec(name="main", **queue))])

    def take(self, events: Sequence[e.Event]) -> None:
        apply_all(self.state, events, NOW)

    def fleet(self, name: str = "gpu", shape: NodeShape | None = H100, **said: Any) -> Fleet:
        wanted: dict[str, Any] = {"nodes_min": 0, "nodes_max": 10, "shape": shape} | said
        spec = FleetSpec(name=name, kind="fake", **wanted)
        self.fleets.fleets[name] = Fleet(spec, "ann", NOW)
        return self.fleets.fleets[name]

    def node(self, fleet: Fleet, number: int, shape: NodeShape = H100) -> None:
        name = f"{fleet.spec.name}-{number}"
        fleet.pilots[name] = Pilot(name, NOW, joined_ms=NOW)
        self.take([e.NodeAdded(NOW, NodeSpec(name, shape.gpus, shape.amounts))])

    def submit(self, count: int = 1, tasks: int = 1, gpus: int = 1, **said: Any) -> None:
        demand = {name: said.pop(name) for name in ("spread", "spread_max", "within") if name in said}
        task = TaskDemand(gpus, models=said.pop("models", ()), amounts=said.pop("amounts", ()))
        for _ in range(count):
            self.jobs += 1
            spec = JobSpec(queue="main", gangs=(GangSpec(Demand(task=task, tasks=tasks, **demand)),), **said)
            answer = commands.submit_many(
                self.state, {str(self.jobs): spec}, "ann", NOW, could_come(self.state, self.fleets)
            )
            assert not isinstance(answer, Refusal), answer
            self.take(answer)

    def plan(self) -> None:
        self.take(commit(self.state, self.policy(Snapshot(self.state, NOW)), NOW))
        for gang in list(self.state.holders.values()):
            self.take(react(self.state, f.TasksUp(gang.id, gang.attempt, gang.everyone), NOW))

    def needs(self) -> dict[str, int]:
        return needs(Snapshot(self.state, NOW), self.fleets.fleets)


def test_nobody_waits_and_nothing_is_needed() -> None:
    world = World()
    world.fleet()
    assert world.needs() == {"gpu": 0}


@pytest.mark.parametrize(
    ("count", "tasks", "gpus", "nodes"),
    [(1, 1, 1, 1), (8, 1, 1, 1), (9, 1, 1, 2), (100, 1, 1, 10), (3, 1, 5, 3), (1, 4, 8, 4), (2, 1, 4, 1), (1, 3, 4, 2)],
)
def test_as_many_nodes_as_they_would_sit_on(count: int, tasks: int, gpus: int, nodes: int) -> None:
    world = World()
    world.fleet()
    world.submit(count, tasks, gpus)
    assert world.needs() == {"gpu": nodes}


def test_what_is_free_here_is_used_first() -> None:
    world = World()
    fleet = world.fleet()
    world.node(fleet, 1)
    world.submit(1, 2, 8)
    assert world.needs() == {"gpu": 2}, "the one that is there, and one more"
    world.plan()
    assert world.needs() == {"gpu": 2}


def test_nodes_with_work_are_needed_and_idle_ones_are_not() -> None:
    world = World()
    fleet = world.fleet()
    world.node(fleet, 1)
    world.node(fleet, 2)
    world.submit(1, 1, 8)
    world.plan()
    assert world.needs() == {"gpu": 1}


def test_a_shape_that_a_fleet_does_not_have_brings_none_of_its_nodes() -> None:
    world = World()
    world.fleet("a100", NodeShape(tuple(Gpu(f"g{n}", "A100", 40_960) for n in range(8))))
    world.fleet("h100")
    world.submit(2, 1, 8, models=("H100",))
    assert world.needs() == {"a100": 0, "h100": 2}


def test_the_cheaper_fleet_comes_first_and_the_dearer_has_the_rest() -> None:
    world = World()
    world.fleet("dear", price_milli=9)
    world.fleet("cheap", price_milli=3, nodes_max=2)
    world.submit(3, 1, 8)
    assert world.needs() == {"cheap": 2, "dear": 1}


def test_amounts_count_as_gpus_do() -> None:
    world = World()
    world.fleet()
    world.submit(4, 1, 1, amounts=amounts({"cpu_milli": 40_000}))
    assert world.needs() == {"gpu": 4}


def test_who_is_over_quota_needs_no_node() -> None:
    world = World(limit=amounts({GPU_MILLI: 16_000}))
    world.fleet()
    world.submit(10, 1, 8)
    assert world.needs() == {"gpu": 2}


def test_one_node_is_enough_to_find_out_what_they_are_like() -> None:
    world = World()
    world.fleet(shape=None)
    world.submit(50, 1, 8)
    assert world.needs() == {"gpu": 1}


def test_bounds_of_a_person_hold() -> None:
    world = World()
    world.fleet(nodes_min=2, nodes_max=3)
    assert world.needs() == {"gpu": 2}
    world.submit(9, 1, 8)
    assert world.needs() == {"gpu": 3}


def test_what_no_fleet_could_ever_hold_is_refused_at_once() -> None:
    world = World()
    world.fleet(nodes_max=2)
    spec = JobSpec(queue="main", gangs=(GangSpec(Demand(task=TaskDemand(8), tasks=3)),))
    could = could_come(world.state, world.fleets)
    answer = commands.submit_many(world.state, {"1": spec}, "ann", NOW, could)
    assert isinstance(answer, Refusal)
    assert isinstance(commands.submit_many(World().state, {"1": spec}, "ann", NOW), Refusal)


def test_looking_changes_nothing() -> None:
    world = World(limit=amounts({GPU_MILLI: 16_000}))
    world.fleet()
    world.submit(10, 1, 8)
    before = (world.state.version, dict(world.state.queues.queues["main"].used), dict(world.state.queues.total))
    world.needs()
    assert (world.state.version, world.state.queues.queues["main"].used, world.state.queues.total) == before
    apply(world.state, e.QueueSet(NOW, QueueSpec(name="other")))
