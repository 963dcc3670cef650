"""``corral show``: one job in detail."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.jobs.logs import named
from corral.cli.render import Field, ago, clock, count, print_line, ranges, state_text, style, table, write_json
from corral.cli.safe_text import one_line
from corral.cli.session import connected
from corral.durations import span

if TYPE_CHECKING:
    from corral.wire.api.jobs import AttemptView, GangView, JobView

_GANGS_SHOWN = _RUNS_SHOWN = 20
_LEFT = Field[object](str)
_RIGHT = Field[object](str, right=True)
_WIDE = Field[object](str, shrinks=True)


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show(job: str, as_json: bool) -> None:
    """Show a job: its request, its placement and all its attempts."""
    with connected() as client:
        view = client.job(named(job)[0])
    if as_json:
        write_json(view)
        return
    _show_head(view)
    if view.gangs:
        print_line()
        _show_gangs(view.gangs)
    if view.history:
        print_line()
        _show_runs(view.history)


def _show_head(job: JobView) -> None:
    held = "(held)" if job.held else ""
    lines = {
        "job": f"{job.id}  {job.name}".rstrip(),
        "state": state_text(job.state, held) + (f": {job.why}" if job.why else ""),
        "queue": f"{job.queue}, priority {job.priority}, of {job.user}",
        "request": f"{count(job.tasks, 'task')}, {count(job.gpus, 'GPU')}"
        + (f", an array of {job.array_size}" if job.array_size else ""),
        "command": shlex.join(job.command),
        "directory": job.directory,
        "submitted": f"{clock(job.submitted_ms)} ({ago(job.submitted_ms)} ago)",
        "started": f"{clock(job.started_ms)} ({ago(job.started_ms)} ago)" if job.started_ms else "",
        "ended": f"{clock(job.ended_ms)} ({ago(job.ended_ms)} ago)" if job.ended_ms else "",
        "exit code": "" if job.exit_code is None else str(job.exit_code),
        "limit": span(job.time_limit_ms) if job.time_limit_ms else "",
        "after": ", ".join(job.after),
        "labels": ", ".join(f"{key}={value}" for key, value in job.labels.items()),
    }
    for title, text in lines.items():
        if text:
            print_line(f"{style(title, dim=True)}{' ' * (11 - len(title))}{one_line(text)}")


def _show_gangs(gangs: tuple[GangView, ...]) -> None:
    rows = []
    for gang in gangs[:_GANGS_SHOWN]:
        seats = "; ".join(f"{s.node}{f' GPU {ranges(s.gpus)}' if s.gpus else ''}" for s in gang.seats)
        leaving = f"leaves ({gang.leaving})" if gang.leaving else ""
        saved = "" if gang.saved_step is None else str(gang.saved_step)
        rows.append((gang.id, state_text(gang.state, leaving), str(gang.attempt), saved, seats))
    for line in table(("GANG", "STATE", "RUN", "SAVED", "WHERE"), rows, (_LEFT, _LEFT, _RIGHT, _RIGHT, _WIDE)):
        print_line(line)
    if len(gangs) > _GANGS_SHOWN:
        print_line(f"and {count(len(gangs) - _GANGS_SHOWN, 'more gang')}; --json shows all")


def _show_runs(runs: tuple[AttemptView, ...]) -> None:
    rows = []
    for run in runs[-_RUNS_SHOWN:]:
        took = span(run.ended_ms - run.started_ms) if run.ended_ms and run.started_ms else ""
        rows.append((run.gang, str(run.attempt), ",".join(dict.fromkeys(run.nodes)), took, _end_of(run)))
    for line in table(("GANG", "ATTEMPT", "NODES", "TIME", "END"), rows, (_LEFT, _RIGHT, _WIDE, _RIGHT, _LEFT)):
        print_line(line)


def _end_of(run: AttemptView) -> str:
    if run.ended_ms is None:
        return state_text("running") if run.started_ms else state_text("starting")
    gainer = f" for {run.beneficiary}" if run.beneficiary else ""
    parts = [f"{run.cause}{gainer}" if run.cause else "", run.failure or "", f"exit {run.exit_code or 0}"]
    lost = f", {span(run.lost_gpu_ms)} of GPU time lost" if run.lost_gpu_ms else ""
    return ", ".join(dict.fromkeys(filter(None, parts))) + lost
