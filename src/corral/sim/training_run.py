"""One large training run for months on nodes that fail: which part of the time it trains, and what the rest is lost to.

Assembles a cluster, one job, faults and costs for the engine that runs everywhere, and folds its events into goodput,
as the server does. Knows no policy but the default one; draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from corral.core import events as e
from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.goodput import Goodput, ratio_ppm
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.sim.cluster_spec import build_cluster
from corral.sim.faults import FaultRates, mishaps
from corral.sim.research.published import policy as named_policy
from corral.sim.run import Arrival, Simulation
from corral.sim.traces.trace import TraceNodes
from corral.sim.world import Costs

DAY_MS = 86_400_000
_BEGIN_MS = 1_000
_JOB = "1"


class TrainingRun(Struct, frozen=True):
    """``failures``: of nodes, per 1,000 node-days. ``spares``: nodes that the job holds idle; ``standby_ms``: the
    restart where only such nodes have joined, with a process that is ready there. ``free``: further nodes, from which
    spares are replaced. ``interval_ms``: of work between checkpoints."""

    gpus: int = 9_600
    gpus_a_node: int = 8
    nodes_a_rack: int = 16
    days: int = 90
    spares: int = 32
    free: int = 32
    failures: float = 6.5
    lemon_tail: float = 2.0
    rack_hours: float = 0.0
    repair_hours: float = 4.0
    detect_ms: int = 10_000
    stall_ms: int = 500
    write_ms: int = 20_000
    start_ms: int = 300_000
    restart_ms: int = 180_000
    standby_ms: int = 60_000
    interval_ms: int = 600_000
    seed: int = 1

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_a_node)

    @property
    def mtbf_ms(self) -> int:
        """Between failures of the nodes of the gang."""
        racks = self.nodes / self.nodes_a_rack / (self.rack_hours / 24) if self.rack_hours else 0.0
        a_day = self.nodes * self.failures / 1000 + racks
        return round(DAY_MS / a_day) if a_day else 1000 * 365 * DAY_MS


class TrainingOutcome(Struct, frozen=True):
    """``ms``: time by cause (`corral.core.goodput`)."""

    ratio_ppm: int
    ms: dict[str, int]
    failures: int
    attempts: int
    saves: int
    interval_ms: int
    mtbf_ms: int


def train(run: TrainingRun) -> TrainingOutcome | Refusal:
    """Simulate the run for its days."""
    total = run.nodes + run.spares + run.free
    cluster = build_cluster([TraceNodes(total, run.gpus_a_node)], [("rack", run.nodes_a_rack)])
    policy = named_policy("standard")
    if isinstance(policy, Refusal):
        return policy
    end_ms = _BEGIN_MS + run.days * DAY_MS
    goodput = Goodput()

    def write(events: Sequence[e.Event]) -> None:
        for event in events:
            goodput.take(event)

    demand = Demand(task=TaskDemand(gpus=run.gpus_a_node), tasks=run.nodes, spares=run.spares)
    spec = JobSpec(queue="training", gangs=(GangSpec(demand),), checkpoints=True)
    rates = FaultRates(
        node_hours=24_000 / run.failures if run.failures else 0.0,
        node_repair_hours=run.repair_hours,
        lemon_tail=run.lemon_tail,
        rack_hours=run.rack_hours,
        detect_ms=run.detect_ms,
        seed=run.seed,
    )
    simulation = Simulation(
        cluster,
        [Arrival(_JOB, _BEGIN_MS, spec, "trainer", 2 * run.days * DAY_MS)],
        policy,
        write,
        queues=[QueueSpec(name="training")],
        costs=Costs(
            start_ms=run.start_ms,
            restart_ms=run.restart_ms,
            checkpoint_every_ms=run.interval_ms,
            stall_ms=run.stall_ms,
            write_ms=run.write_ms,
            standby_ms=run.standby_ms,
        ),
        mishaps=mishaps(cluster, rates, _BEGIN_MS, end_ms),
        settings=Settings(levels=cluster.levels),
    )
    simulation.run(end_ms)
    (gang,) = goodput.gangs.values()
    gang.until(end_ms)
    return TrainingOutcome(
        ratio_ppm(gang.ms), gang.ms, gang.failures, gang.attempts, gang.saves, run.interval_ms, run.mtbf_ms
    )
