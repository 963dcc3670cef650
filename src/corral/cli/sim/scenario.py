"""From the command line to scenarios: a workload, a cluster and one scenario per policy.

All errors in the options are found here, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from corral.cli.errors import Complaint, nearest, unknown
from corral.cli.sim.options import Asked
from corral.core.intake.refusal import Refusal
from corral.sim.cluster_spec import ClusterSpec, build_cluster, parse_cluster, parse_levels
from corral.sim.experiment import Scenario
from corral.sim.faults import FaultRates, fault_rates_faults
from corral.sim.report.measures import Power
from corral.sim.research.published import POLICIES
from corral.sim.speed import DEFAULT_SLOWDOWN
from corral.sim.traces.catalog import open_trace
from corral.sim.traces.text_rows import TraceError, UnknownTrace
from corral.sim.traces.trace import Trace, TraceNodes
from corral.sim.workload import queue_of
from corral.sim.world import FREE, TYPICAL, Costs

Value = TypeVar("Value")


class SimRequest(Struct, frozen=True):
    """What to simulate: the same workload and cluster for every scenario."""

    trace: Trace
    cluster: ClusterSpec
    scenarios: tuple[Scenario, ...]


def question(asked: Asked, policies: Sequence[str]) -> SimRequest:
    """The options parsed. Raises ``Complaint``."""
    for name in policies:
        if name not in POLICIES:
            raise unknown("policy", name, POLICIES)
    costs = _costs(asked)
    faults = _faults(asked)
    power = _power(asked)
    with complaining():
        trace = open_trace(asked.trace, asked.traces or None)
    if not trace.jobs:
        skipped = ", ".join(f"{count} {reason}" for reason, count in trace.skipped)
        raise Complaint(f"{asked.trace} has no jobs to run", f"left out: {skipped}" if skipped else "")
    cluster = _cluster(asked, trace)
    scenarios = tuple(
        Scenario(
            policy=name,
            costs=costs,
            estimates=asked.estimates,
            whole_nodes=asked.whole_nodes,
            checkpoints=asked.saves,
            time_share=asked.time_share,
            slowdown=DEFAULT_SLOWDOWN if asked.speed_model == "distance" else None,
            faults=faults,
            guarantees=_guarantees(asked, trace, cluster),
            power=power,
            until_ms=asked.until,
        )
        for name in policies
    )
    return SimRequest(trace, cluster, scenarios)


@contextmanager
def complaining() -> Iterator[None]:
    """Errors in reading become ``Complaint``."""
    try:
        yield
    except UnknownTrace as error:
        hint = "list workloads with: corral sim list; name the folder of public traces with --traces or CORRAL_TRACES"
        raise Complaint(str(error), hint) from None
    except TraceError as error:
        raise Complaint(str(error)) from None


def nodes_text(nodes: Sequence[TraceNodes]) -> str:
    """Nodes as ``--nodes`` takes them."""
    return "+".join(f"{part.count}x{part.gpus}{f':{part.model}' if part.model else ''}" for part in nodes)


def _cluster(asked: Asked, trace: Trace) -> ClusterSpec:
    levels = granted(parse_levels(asked.topology))
    if asked.nodes is not None:
        return granted(parse_cluster(asked.nodes, asked.topology))
    if not trace.nodes:
        what = f"{asked.trace} does not describe a cluster"
        raise Complaint(what, "give --nodes, for example --nodes 8x8 (8 nodes of 8 GPUs)")
    return build_cluster(trace.nodes, levels)


def _costs(asked: Asked) -> Costs:
    stated = {
        "start_ms": asked.start,
        "restart_ms": asked.restart,
        "save_ms": asked.save,
        "stop_ms": asked.stop,
        "checkpoint_every_ms": asked.checkpoint_every,
    }
    costs = replace(
        TYPICAL if asked.costs == "typical" else FREE, **{name: ms for name, ms in stated.items() if ms is not None}
    )
    if asked.saves:
        return costs
    if asked.checkpoint_every or asked.save:
        raise Complaint("--no-saves excludes --save and --checkpoint-every", "leave one of them out")
    return replace(costs, saves=False, checkpoint_every_ms=0)


def _faults(asked: Asked) -> FaultRates | None:
    if not (asked.node_hours or asked.gpu_hours or asked.lost_reports):
        return None
    rates = FaultRates(
        node_hours=asked.node_hours,
        node_repair_hours=asked.node_repair_hours,
        gpu_hours=asked.gpu_hours,
        gpu_repair_hours=asked.gpu_repair_hours,
        lost_reports=asked.lost_reports,
        seed=asked.seed,
    )
    for refusal in fault_rates_faults(rates):
        option = "--" + refusal.field.replace("_", "-")
        raise Complaint(f"{option}: {refusal.why}", refusal.hint)
    return rates


def _power(asked: Asked) -> Power | None:
    if asked.power_idle is None and asked.power_busy is None:
        if asked.price is not None:
            hint = "for example --power-idle 60 --power-busy 500"
            raise Complaint("--price needs --power-idle and --power-busy", hint)
        return None
    if asked.power_idle is None or asked.power_busy is None:
        raise Complaint("--power-idle and --power-busy belong together", "state both, in watts of one GPU")
    return Power(asked.power_idle, asked.power_busy, asked.price or 0.0)


def _guarantees(asked: Asked, trace: Trace, cluster: ClusterSpec) -> tuple[tuple[str, int], ...]:
    teams = sorted({queue_of(job) for job in trace.jobs})
    for team, _ in asked.guarantee:
        if team not in teams:
            raise Complaint(f"--guarantee: {asked.trace} has no team {team!r}", nearest(team, teams))
    guaranteed = sum(gpus for _, gpus in asked.guarantee)
    if guaranteed > cluster.gpus:
        what = f"--guarantee adds up to {guaranteed} GPUs, there are {cluster.gpus}"
        raise Complaint(what, "guarantee no more GPUs than there are")
    return asked.guarantee


def granted(answer: Value | Refusal) -> Value:
    """The value, or the refusal as a ``Complaint``."""
    if isinstance(answer, Refusal):
        where = f"--{answer.field}: " if answer.field else ""
        raise Complaint(f"{where}{answer.why}", answer.hint)
    return answer
