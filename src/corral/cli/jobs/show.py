"""``corral show``: one job in detail."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.jobs.activity_text import print_activity
from corral.cli.jobs.logs import show_end_of_log
from corral.cli.jobs.names import job_name
from corral.cli.jobs.wait import failure_text
from corral.cli.jobs.waiting import progress, waiting_text
from corral.cli.render import Field, ago, clock, count, print_line, ranges, state_text, style, table, write_json
from corral.cli.safe_text import one_line
from corral.cli.session import connected
from corral.duration_text import span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.client.blocking import Client
    from corral.wire.api.jobs import AttemptView, GangView, JobView

#: Why the scheduler stops an attempt: to make room for another job, or for the job itself.
_PREEMPTING = frozenset({"reclaim", "priority", "time_share", "shrink"})
_STOPPED = {
    "grow": "restarted with more tasks",
    "move": "moved to other nodes",
    "drain": "stopped because its node was drained",
    "requeue": "requeued by a user",
    "time_limit": "stopped at its time limit",
    "unrepairable": "stopped because a lost task could not be replaced",
}
_ACTIVE = ("running", "stopping")
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
        view = client.job(job_name(job))
        if as_json:
            write_json(view)
            return
        canceller = "" if view.state != "cancelled" else _canceller(client, view)
        _show_head(view, canceller)
        if view.state in _ACTIVE:
            _show_activity(client, view.id)
        if view.gangs:
            print_line()
            _show_gangs(view.gangs)
            if any(gang.saved_step is not None for gang in view.gangs):
                _show_advice(client, view.id)
        if view.history:
            print_line()
            _show_runs(view.history, canceller)
        if view.state == "failed":
            print_line()
            show_end_of_log(client, view, print_line, sys.stdout)


def _show_activity(client: Client, job: str) -> None:
    """What it does now; nothing if the server is older and does not know."""
    from corral.client.errors import NotFound

    with suppress(NotFound):
        print_activity(client.job_activity(job))


def _show_advice(client: Client, job: str) -> None:
    """How often a job that saves should do so; nothing if the server is older."""
    from corral.cli.training.goodput import advice_text
    from corral.client.errors import NotFound

    with suppress(NotFound):
        advice = client.goodput(job).advice
        if advice is not None:
            print_line(advice_text(advice)[0])


def _canceller(client: Client, job: JobView) -> str:
    """The user who cancelled it."""
    return next((event.actor for event in client.events(0, job=job.id, types=("JobCancelled",))), "")


def _show_head(job: JobView, canceller: str) -> None:
    note = f"by {canceller}" if canceller else "(held)" if job.held and job.state == "waiting" else ""
    lines = {
        "job": f"{job.id}  {job.name}".rstrip(),
        "state": state_text(job.state, note) + _why(job),
        "queue": f"{job.queue}, priority {job.priority}, of {job.user}",
        "request": f"{count(job.tasks, 'task')}, {count(job.gpus, 'GPU')}"
        + (f", an array of {job.array_size}" if job.array_size else ""),
        "progress": progress(job.counts) if job.array_size and job.counts is not None else "",
        "holds": f"{count(job.gpus_held, 'GPU')} on {count(job.nodes_held, 'node')}" if job.nodes_held else "",
        "waits": waiting_text(job) if job.reason else "",
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


def _why(job: JobView) -> str:
    if job.state == "failed":
        return failure_text(job.failure, job.exit_code, job.why)
    if job.array_size and job.ended_ms is None:
        return ""  # that of an element that has ended is no reason of the others
    return f": {job.why}" if job.why and job.why != job.state else ""


def _show_gangs(gangs: tuple[GangView, ...]) -> None:
    rows = []
    for gang in gangs[:_GANGS_SHOWN]:
        seats = "; ".join(f"{s.node}{f' GPU {ranges(s.gpus)}' if s.gpus else ''}" for s in gang.seats)
        leaving = f"({gang.leaving})" if gang.leaving else ""
        saved = "" if gang.saved_step is None else str(gang.saved_step)
        rows.append((gang.id, state_text(gang.state, leaving), str(gang.attempt), saved, seats))
    for line in table(("GANG", "STATE", "ATTEMPT", "SAVED", "WHERE"), rows, (_LEFT, _LEFT, _RIGHT, _RIGHT, _WIDE)):
        print_line(line)
    if len(gangs) > _GANGS_SHOWN:
        print_line(f"and {count(len(gangs) - _GANGS_SHOWN, 'more gang')}; --json shows all")
    for slow in [slow for gang in gangs for slow in gang.slow_ranks][:_GANGS_SHOWN]:
        print_line(f"slow: {slow}; the other ranks wait for it")


def _show_runs(runs: tuple[AttemptView, ...], canceller: str) -> None:
    rows = []
    following = {(run.gang, run.attempt - 1): run for run in runs}
    for run in runs[-_RUNS_SHOWN:]:
        took = span(run.ended_ms - run.started_ms) if run.ended_ms and run.started_ms else ""
        nodes, end = ",".join(dict.fromkeys(run.nodes)), _end_of(run, following, canceller)
        rows.append((run.gang, str(run.attempt), nodes, took, end))
    for line in table(("GANG", "ATTEMPT", "NODES", "TIME", "END"), rows, (_LEFT, _RIGHT, _WIDE, _RIGHT, _LEFT)):
        print_line(line)


def _end_of(run: AttemptView, following: Mapping[tuple[str, int], AttemptView], canceller: str) -> str:
    """How an attempt ended, and when the gang continued. Only an error of the program or of a node is a failure."""
    if run.ended_ms is None:
        return state_text("running") if run.started_ms else state_text("starting")
    after = following.get((run.gang, run.attempt))
    resumed = f", resumed {span(after.started_ms - run.ended_ms)} later" if after and after.started_ms else ""
    lost = f", {span(run.lost_gpu_ms)} of GPU time lost" if run.lost_gpu_ms else ""
    return _how(run, canceller) + resumed + lost


def _how(run: AttemptView, canceller: str) -> str:
    if run.cause == "cancel":
        return "cancelled" + (f" by {canceller}" if canceller else "")
    if run.failure is None:
        return "succeeded" if not run.exit_code else f"asked to be requeued (exit {run.exit_code})"
    if run.cause in _PREEMPTING:
        gainer = run.beneficiary.removesuffix("/main")
        by = f" by {gainer if ' ' in gainer else f'job {gainer}'}" if gainer else ""  # or by "another job"
        return f"preempted{by} ({run.cause.replace('_', ' ')})"
    if run.failure in ("preempted", "time_limit"):
        return _STOPPED.get(run.cause or run.failure, "stopped")
    return f"failed{failure_text(run.failure, run.exit_code, run.first_failure.text if run.first_failure else '')}"
