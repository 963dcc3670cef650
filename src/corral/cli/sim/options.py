"""The options of a simulation on the command line, and their values.

Knows names, units and defaults of options. Light: the simulator itself is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import rich_click as click

from corral.cli.option_types import Counted, Span, Word

ESTIMATES = ("learned", "exact", "hours", "stated", "none")
COSTS = ("typical", "free")
SPEED_MODELS = ("distance", "none")

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of ``run`` and ``compare`` as given. Durations are milliseconds; None: not given."""

    trace: str
    traces: str | None
    nodes: str | None
    topology: str
    policy: str
    estimates: str
    time_share: int
    guarantee: tuple[tuple[str, int], ...]
    whole_nodes: bool
    until: int | None
    costs: str
    start: int | None
    restart: int | None
    save: int | None
    stop: int | None
    checkpoint_every: int | None
    saves: bool
    speed_model: str
    node_hours: float
    node_repair_hours: float
    gpu_hours: float
    gpu_repair_hours: float
    lost_reports: float
    seed: int
    power_idle: float | None
    power_busy: float | None
    price: float | None
    json: str | None
    csv: str | None
    html: str | None
    journal: str | None
    quiet: bool
    jobs: int = 1


def simulation_options(function: Function) -> Function:
    """All options that ``run`` and ``compare`` share."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


traces_option = click.option(
    "--traces", metavar="FOLDER", envvar="CORRAL_TRACES", show_envvar=True, help="Folder of public traces."
)


def asked_option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    """An option of the scenario itself; these are listed first in the help."""
    return click.option(*names, panel="Question", **settings)


def _span(name: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, type=Span(), metavar="TIME", help=text, panel="Costs")


def _amount(name: str, default: float | None, text: str, panel: str) -> Callable[[Function], Function]:
    kind = click.FloatRange(min=0)
    return click.option(name, type=kind, metavar="N", default=default, help=text, panel=panel)


def _report(name: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, metavar="FILE", help=text, panel="Reports")


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    asked_option("--trace", metavar="NAME", required=True, help="Workload: synthetic:lab, csv:jobs.csv, …"),
    traces_option,
    asked_option("--nodes", metavar="8x8", default=None, help="Cluster to simulate; default: that of the workload."),
    asked_option("--topology", metavar="rack=8,spine=4", default="", help="Levels above nodes, innermost first."),
    asked_option("--estimates", type=Word(*ESTIMATES), default="learned", help="Source of run-time estimates."),
    asked_option(
        "--time-share",
        type=click.IntRange(min=0),
        metavar="N",
        default=8,  # that of queues
        help="Shortest turn before a job yields to an equal, in multiples of the cost of a switch; 0: never yields.",
    ),
    asked_option("--guarantee", type=Counted(), metavar="TEAM=GPUS", multiple=True, help="Guaranteed GPUs of a team."),
    asked_option("--whole-nodes", is_flag=True, help="Jobs larger than a node take whole nodes."),
    asked_option(
        "--until", type=Span(), metavar="TIME", default=None, help="End this long after the first submission."
    ),
    click.option(
        "--costs", type=Word(*COSTS), default="typical", help="Default values of the costs below.", panel="Costs"
    ),
    _span("--start", "Time to start a job."),
    _span("--restart", "Time to restart from a checkpoint."),
    _span("--save", "Time to save a checkpoint when preempted."),
    _span("--stop", "Time to stop a job."),
    _span("--checkpoint-every", "Interval between checkpoints; 0: none."),
    click.option("--saves/--no-saves", default=True, help="Whether jobs save checkpoints.", panel="Costs"),
    click.option(
        "--speed-model", type=Word(*SPEED_MODELS), default="distance", help="Slowdown of spread jobs.", panel="Costs"
    ),
    _amount("--node-hours", 0.0, "Mean hours between losses of a node; 0: never.", "Faults"),
    _amount("--node-repair-hours", 2.0, "Mean hours to repair a node.", "Faults"),
    _amount("--gpu-hours", 0.0, "Mean hours between failures of a GPU; 0: never.", "Faults"),
    _amount("--gpu-repair-hours", 24.0, "Mean hours to repair a GPU.", "Faults"),
    _amount("--lost-reports", 0.0, "Fraction of reports that arrive late; as many arrive twice.", "Faults"),
    click.option("--seed", type=int, metavar="N", default=1, help="Seed of the simulated faults.", panel="Faults"),
    _amount("--power-idle", None, "Power of an idle GPU in watts.", "Energy"),
    _amount("--power-busy", None, "Power of a busy GPU in watts.", "Energy"),
    _amount("--price", None, "Price of a kilowatt-hour.", "Energy"),
    _report("--json", "Write the measures as JSON; - for standard output."),
    _report("--csv", "Write one line per job."),
    _report("--html", "Write a self-contained page with charts."),
    _report("--journal", "Write every event as a line of JSON."),
    click.option("--quiet", "-q", is_flag=True, help="Print no progress and no notes.", panel="Reports"),
)
