"""Small simulated runs for the tests of the simulator: a few jobs on a few nodes, and everything that happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec, QueueSpec
from corral.sim.cluster_spec import ClusterSpec, parse_cluster
from corral.sim.research.published import policy
from corral.sim.run import Arrival, Simulation
from corral.sim.world import FREE, Costs

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

Kind = TypeVar("Kind")


def cluster(text: str = "1x8", topology: str = "") -> ClusterSpec:
    found = parse_cluster(text, topology)
    assert not isinstance(found, Refusal), found
    return found


def job(name: str, at_ms: int, work_ms: int, gpus: int = 8, tasks: int = 1, exit_code: int = 0, **spec: Any) -> Arrival:
    """A job of this many tasks with this many GPUs each."""
    demand = Demand(task=TaskDemand(gpus=gpus), tasks=tasks)
    asked = JobSpec(**{"queue": "all", "gangs": (GangSpec(demand),), "checkpoints": True, **spec})
    return Arrival(name, at_ms, asked, "ann", work_ms, exit_code)


class Told:
    """A run that has been lived through to its end, and its events."""

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        machines: ClusterSpec | None = None,
        policy_name: str = "priority",
        costs: Costs = FREE,
        mishaps: Iterable[tuple[int, f.Fact]] = (),
        **more: Any,
    ) -> None:
        self.events: list[e.Event] = []
        self.refusals: list[Refusal] = []
        chosen = policy(policy_name)
        assert not isinstance(chosen, Refusal), chosen
        carry = more.pop("carry", None)
        self.simulation = Simulation(
            cluster() if machines is None else machines,
            list(arrivals),
            chosen,
            self.events.extend,
            queues=[QueueSpec(name="all")],
            costs=costs,
            mishaps=mishaps,
            refuse=lambda _, refusal: self.refusals.append(refusal),
            **more,
        )
        self.simulation.delivery_times = carry
        self.simulation.run()

    def of(self, kind: type[Kind], name: str = "") -> list[Kind]:
        """Events of a kind, of all jobs or of one."""
        return [
            event
            for event in self.events
            if isinstance(event, kind)
            and (not name or name in (getattr(event, "job", ""), getattr(event, "gang", "").partition("/")[0]))
        ]

    def ended_ms(self, name: str) -> int:
        (end,) = self.of(e.JobEnded, name)
        return end.at_ms
