"""A site to be lived through: machines, queues, jobs with their true lengths, and what befalls the machines.

The real engine under the simulator's driver, in memory. What comes back is the journal and every plan, nothing else:
judges read those. Judges nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import GPU_MILLI, Demand, TaskDemand, amounts
from corral.core.engine import Policy
from corral.core.intake.commands import Answer
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.backfill.backfill import CONSERVATIVE, EASY
from corral.policy.catalog import policy, standard
from corral.sim.cluster_spec import parse_cluster
from corral.sim.run import Arrival, Simulation
from corral.sim.world import FREE, Costs

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
DAY = 24 * HOUR
START_MS = 1_000 * DAY  # a time like any other; windows of budgets begin at it

#: What somebody does at a moment: from the state and the time to the answer of a command.
Command = Callable[[State, int], Answer]


def queue(name: str, **terms: Any) -> QueueSpec:
    """Guarantee, limit, lend and user_limit may be given as a number of GPUs."""
    for bound in ("guarantee", "limit", "lend", "user_limit"):
        if isinstance(terms.get(bound), int):
            terms[bound] = amounts({GPU_MILLI: terms[bound] * 1000})
    return QueueSpec(name=name, **terms)


def job(
    name: str,
    at_ms: int,
    length_ms: int,
    queue: str = "q",
    gpus: int = 1,
    tasks: int = 1,
    user: str = "ann",
    **spec: Any,
) -> Arrival:
    """A job whose length is known exactly, unless ``spec`` says otherwise. ``at_ms``: after the start of the run."""
    shape = {each: spec.pop(each) for each in list(spec) if each in Demand.__struct_fields__}
    task = {each: spec.pop(each) for each in list(spec) if each in TaskDemand.__struct_fields__}
    demand = Demand(task=TaskDemand(gpus=gpus, **task), tasks=tasks, **shape)
    terms = {"queue": queue, "gangs": (GangSpec(demand),), "estimate_ms": length_ms, "restart_cost_ms": 0, **spec}
    return Arrival(name, START_MS + at_ms, JobSpec(**terms), user, length_ms)


@dataclass(frozen=True)
class Site:
    nodes: str
    queues: tuple[QueueSpec, ...]
    jobs: tuple[Arrival, ...]
    until_ms: int = DAY  # after the start of the run
    patience_ms: int | None = DAY
    depth: int = 1
    costs: Costs = FREE
    mishaps: tuple[tuple[int, f.Fact], ...] = ()
    commands: tuple[tuple[int, Command], ...] = ()
    settings: dict[str, int] = field(default_factory=dict)
    policy: str = "standard"  # or easy, conservative: in order of arrival with that backfill

    @property
    def gpus(self) -> int:
        return sum(int(count) * int(each) for count, each in re.findall(r"(\d+)x(\d+)", self.nodes))


@dataclass
class Run:
    """What happened. Times in ``events`` and ``plans`` are absolute; ``since`` turns them into time since the start."""

    site: Site
    events: list[e.Event] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)

    @property
    def end_ms(self) -> int:
        return START_MS + self.site.until_ms


def since(at_ms: int) -> int:
    return at_ms - START_MS


def live(site: Site) -> Run:
    """The whole run, until everything is over or until its end."""
    run = Run(site)
    decides = policy_of(site)

    def watched(snapshot: Snapshot) -> Plan:
        plan = decides(snapshot)
        run.plans.append(plan)
        return plan

    def refuse(arrival: Arrival, refusal: Refusal) -> None:
        run.refused[arrival.id] = refusal

    cluster = parse_cluster(site.nodes)
    assert not isinstance(cluster, Refusal), cluster
    simulation = Simulation(
        cluster, sorted(site.jobs, key=lambda each: each.at_ms), watched, run.events.extend,
        queues=site.queues, costs=site.costs, mishaps=[(START_MS + at, fact) for at, fact in site.mishaps],
        settings=Settings(levels=cluster.levels, **site.settings), refuse=refuse,
    )  # fmt: skip
    for at_ms, command in sorted(site.commands, key=lambda each: each[0]):
        simulation.run(START_MS + at_ms - 1)
        _do(simulation, command, START_MS + at_ms)
    simulation.run(run.end_ms)
    return run


def policy_of(site: Site) -> Policy:
    if site.policy == "standard":
        return standard(depth=site.depth, patience_ms=site.patience_ms)
    found = policy("fifo", backfill={"easy": EASY, "conservative": CONSERVATIVE}[site.policy])
    assert not isinstance(found, Refusal), found
    return found


def _do(simulation: Simulation, command: Command, now_ms: int) -> None:
    simulation.now_ms = now_ms
    answer = command(simulation.state, now_ms)
    assert not isinstance(answer, Refusal), answer
    simulation._take(answer)
    simulation._plan()
