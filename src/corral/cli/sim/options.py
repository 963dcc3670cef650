"""What can be said about a simulation on the command line, and what was said.

Knows names, units and defaults of options. Light: the simulator itself is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import rich_click as click

from corral.cli.words import Counted, Span, Word

ESTIMATES = ("learned", "exact", "hours", "stated", "none")
COSTS = ("typical", "free")
SPEED_MODELS = ("distance", "none")

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of ``run`` and ``compare`` as they were given. Spans are milliseconds; None is not stated."""

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
    """An option that is part of the question itself: these come first in the help."""
    return click.option(*names, panel="Question", **settings)


def _span(name: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, type=Span(), metavar="TIME", default=None, help=text, panel="Costs")


def _amount(name: str, default: float | None, text: str, panel: str) -> Callable[[Function], Function]:
    kind = click.FloatRange(min=0)
    return click.option(name, type=kind, metavar="N", default=default, help=text, panel=panel)


def _report(name: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, metavar="FILE", default=None, help=text, panel="Reports")


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    asked_option("--trace", metavar="NAME", required=True, help="The workload: synthetic:lab, csv:jobs.csv, …"),
    traces_option,
    asked_option("--nodes", metavar="8x8", default=None, help="Machines, if not those of the workload."),
    asked_option("--topology", metavar="rack=8,spine=4", default="", help="Levels above nodes, innermost first."),
    asked_option("--estimates", type=Word(*ESTIMATES), default="learned", help="What is known of how long jobs run."),
    asked_option("--time-share", type=click.IntRange(min=0), metavar="N", default=0, help="Take turns; 0: do not."),
    asked_option("--guarantee", type=Counted(), metavar="TEAM=GPUS", multiple=True, help="A team's guaranteed share."),
    asked_option("--whole-nodes", is_flag=True, help="Jobs larger than a node take whole nodes."),
    asked_option("--until", type=Span(), metavar="TIME", default=None, help="End the run so long after its beginning."),
    click.option("--costs", type=Word(*COSTS), default="typical", help="What is not stated below.", panel="Costs"),
    _span("--start", "From the order to the first step."),
    _span("--restart", "The same where a checkpoint is loaded."),
    _span("--save", "To write a checkpoint when told to leave."),
    _span("--stop", "From the last word to the end of the processes."),
    _span("--checkpoint-every", "Between checkpoints while running; 0: none."),
    click.option("--saves/--no-saves", default=True, help="Whether jobs checkpoint at all.", panel="Costs"),
    click.option("--speed-model", type=Word(*SPEED_MODELS), default="distance", help="What being spread out costs.",
                 panel="Costs"),
    _amount("--node-hours", 0.0, "Mean hours between losses of a node; 0: never.", "Faults"),
    _amount("--node-repair-hours", 2.0, "Mean hours until it is back.", "Faults"),
    _amount("--gpu-hours", 0.0, "Mean hours between failures of a GPU; 0: never.", "Faults"),
    _amount("--gpu-repair-hours", 24.0, "Mean hours until it is mended.", "Faults"),
    _amount("--lost-reports", 0.0, "Part of reports that are lost and come again, or come twice.", "Faults"),
    click.option("--seed", type=int, metavar="N", default=1, help="Of the faults.", panel="Faults"),
    _amount("--power-idle", None, "Watts of a GPU at rest.", "Energy"),
    _amount("--power-busy", None, "Watts of a GPU at work.", "Energy"),
    _amount("--price", None, "Of a kilowatt-hour.", "Energy"),
    _report("--json", "Measures as JSON; - is standard output."),
    _report("--csv", "One line a job."),
    _report("--html", "A page with charts; needs nothing else."),
    _report("--journal", "Every event as a line of JSON."),
    click.option("--quiet", "-q", is_flag=True, help="No progress, no notes.", panel="Reports"),
)  # fmt: skip
