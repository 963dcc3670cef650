"""``corral sim training``: one large training run for months, and what its time is lost to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.option_types import Span, span_ms
from corral.cli.render import print_line, write_json
from corral.cli.training.goodput import causes_table
from corral.duration_text import span

if TYPE_CHECKING:
    from corral.sim.training_run import TrainingRun

Function = Callable[..., Any]


def _count(name: str, default: float, text: str, kind: Any = None) -> Callable[[Function], Function]:
    kind = kind or click.IntRange(min=0)
    return click.option(name, type=kind, metavar="N", default=default, show_default=True, help=text)


def _time(name: str, default: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, type=Span(), metavar="TIME", default=default, show_default=True, help=text)


_RATE = click.FloatRange(min=0)


@click.command()
@_count("--gpus", 9_600, "GPUs of the run.", click.IntRange(min=1))
@_count("--days", 90, "Length of the simulation.", click.IntRange(min=1))
@_count("--spares", 32, "Nodes that the job holds idle to replace lost ones.")
@_count("--free", 32, "Further free nodes.")
@_count("--failures", 6.5, "Failures of nodes per 1,000 node-days.", _RATE)
@_count("--lemon-tail", 2.0, "Exponent of the Pareto distribution of failure rates; 0: all nodes alike.", _RATE)
@_count("--rack-hours", 0.0, "Mean hours between losses of a whole rack of 16 nodes; 0: never.", _RATE)
@_count("--repair-hours", 4.0, "Mean hours until a lost node is back.", _RATE)
@_time("--detect", "10s", "Until a lost node is noticed.")
@_time("--stall", "500ms", "For which a save stops training.")
@_time("--write", "20s", "From then until the checkpoint is durable.")
@_time("--restart", "3m", "Time to restart on other nodes.")
@_time("--standby", "1m", "Time to restart with spares where a process is ready; 0s: as any restart.")
@click.option("--interval", metavar="TIME|auto", default="auto", show_default=True, help="Between checkpoints.")
@click.option("--seed", type=int, metavar="N", default=1, show_default=True, help="Seed of the faults.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def training(interval: str, as_json: bool, **given: Any) -> None:
    """Simulate one large training run for months on nodes that fail, and show what its time is lost to."""
    from msgspec.structs import replace

    from corral.core.intake.refusal import Refusal
    from corral.sim.training_run import TrainingRun, train

    times = {f"{name}_ms": given.pop(name) for name in ("detect", "stall", "write", "restart", "standby")}
    run = TrainingRun(**times, **given)
    run = replace(run, interval_ms=advised_ms(run) if interval == "auto" else span_ms(interval, "--interval"))
    found = train(run)
    if isinstance(found, Refusal):
        raise Complaint(found.why, found.hint)
    if as_json:
        write_json(found)
        return
    how = "advised" if interval == "auto" else "given"
    print_line(
        f"{given['gpus']:,} GPUs for {given['days']} days: {found.failures} failures, "
        f"a checkpoint every {span(found.interval_ms)} ({how})"
    )
    formula = f"by the formula: {expected_ppm(run) / 10_000:.2f} %"
    print_line(f"effective training time {found.ratio_ppm / 10_000:.2f} % ({formula})")
    for line in causes_table(found.ms):
        print_line(line)


def advised_ms(run: TrainingRun) -> int:
    from corral.checkpoints.interval import best_interval_s

    return round(1000 * best_interval_s(run.stall_ms / 1000, run.write_ms / 1000, run.mtbf_ms / 1000))


def expected_ppm(run: TrainingRun) -> int:
    """What the formula of the advice expects, in millionths."""
    from corral.checkpoints.interval import expect

    restart_ms = run.detect_ms + (run.standby_ms if run.spares and run.standby_ms else run.restart_ms)
    costs_s = [ms / 1000 for ms in (run.interval_ms, run.stall_ms, run.write_ms, run.mtbf_ms, restart_ms)]
    return round(1_000_000 * (1 - expect(*costs_s).loss))
