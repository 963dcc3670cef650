"""``corral top``: what the cluster or one job does now, kept current on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.jobs.activity_text import (
    cluster_text,
    has_figures,
    job_lines,
    node_lines,
    progress_text,
    rank_lines,
    total_text,
)
from corral.cli.jobs.names import job_name
from corral.cli.option_types import Span
from corral.cli.render import ago, clock, count, cut, print_line, state_text, style, write_json
from corral.cli.safe_text import one_line
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.activity import ClusterActivity, JobActivity

_LINES_MAX = 1_000  # jobs and nodes that are asked for
_PIPE_COLUMNS = 120
_OVER = ("succeeded", "failed", "cancelled")


@click.command()
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="Print once and exit; this is the default if the output is not a terminal.")
@click.option(
    "--interval", type=Span(), metavar="TIME", default="5s", show_default=True, help="Time between two refreshes."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON once.", panel="Output")
def top(job: str | None, once: bool, interval: int, as_json: bool) -> None:
    """Show what the nodes and running jobs do now; with JOB: what each of its ranks does.

    GPU utilisation, memory and power, CPU and memory, and the steps and the loss that programs report with
    corral_training.step_done. Nodes report about every 10 seconds. End it with Ctrl-C.
    """
    if interval < 1_000:
        raise Complaint("--interval is shorter than a second", "nodes report about every 10 seconds; write 5s")
    with connected(patience_s=60.0) as client:
        if as_json:
            write_json(_cluster(client) if job is None else _job(client, job))
            return
        frame = _frames(client, job)
        if once or not sys.stdout.isatty():
            _print(frame(_columns(), None))
            return
        _live(frame, interval / 1000)


def _cluster(client: Client) -> ClusterActivity:
    return client.activity(limit=_LINES_MAX)


def _job(client: Client, job: str) -> JobActivity:
    return client.job_activity(job_name(job))


def _frames(client: Client, job: str | None) -> Callable[[int, int | None], list[str]]:
    """What to show, by the columns and rows of the screen."""
    if job is None:
        return lambda columns, rows: _cluster_frame(_cluster(client), columns, rows)
    return lambda columns, rows: _job_frame(_job(client, job), columns, rows)


def _columns() -> int:
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and stated != "0":
        return int(stated)
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else _PIPE_COLUMNS


# ---- the screen ----------------------------------------------------------------------------------------


def _live(frame: Callable[[int, int | None], list[str]], every_s: float) -> None:
    with _screen():
        try:
            while True:
                size = os.get_terminal_size(sys.stdout.fileno())
                lines = frame(_columns(), size.lines)
                sys.stdout.write("\x1b[H\x1b[J")
                _print(lines[: size.lines - 1])
                sys.stdout.flush()
                time.sleep(every_s)
        except KeyboardInterrupt:
            pass  # the usual end


@contextmanager
def _screen() -> Iterator[None]:
    """A screen of its own without a cursor; at the end the terminal is as it was."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _print(lines: list[str]) -> None:
    for line in lines:
        print_line(line)


# ---- what is shown -------------------------------------------------------------------------------------


def _cluster_frame(activity: ClusterActivity, columns: int, rows: int | None) -> list[str]:
    lines = [cut(f"{clock(activity.at_ms)}  {cluster_text(activity)}", columns)]
    room = None if rows is None else max((rows - 8) // 2, 1)
    lines += ["", *node_lines(activity.nodes[:room], columns)]
    lines += _left_out(activity.nodes_total - len(activity.nodes[:room]), "node")
    if not activity.jobs:
        return [*lines, "", "no running jobs"]
    lines += ["", *job_lines(activity.jobs[:room], columns)]
    lines += _left_out(activity.jobs_total - len(activity.jobs[:room]), "job")
    found = [f"job {line.job}: {note}" for line in activity.jobs for note in line.notes]
    return [*lines, *_notes(found, columns)]


def _job_frame(activity: JobActivity, columns: int, rows: int | None) -> list[str]:
    since = f" for {ago(activity.started_ms)}" if activity.state == "running" and activity.started_ms else ""
    name = f"job {activity.job}  {one_line(activity.name)}".rstrip()
    lines = [cut(f"{clock(activity.at_ms)}  {name}  {state_text(activity.state)}{since}, of {activity.user}", columns)]
    if not activity.tasks:
        what = "it has ended" if activity.state in _OVER else f"it is not running; see: corral why {activity.job}"
        return [*lines, what]
    if not has_figures(activity):
        lines.append("no figures yet: nodes report about every 10 seconds")
    else:
        lines += [cut(text, columns) for text in (total_text(activity.total), progress_text(activity)) if text]
    lines += _notes(list(activity.notes), columns)
    table = rank_lines(activity, columns)
    room = len(table) if rows is None else max(rows - len(lines) - 3, 2)
    more = [f"and {count(len(table) - room, 'more row')}; --once shows all"] if len(table) > room else []
    hidden = _left_out(activity.tasks_total - len(activity.tasks), "task")
    return [*lines, "", *table[:room], *more, *hidden]


def _left_out(many: int, what: str) -> list[str]:
    return [f"and {count(many, f'more {what}')}"] if many > 0 else []


def _notes(found: list[str], columns: int) -> list[str]:
    return ["", *(style(cut(one_line(note), columns), fg="yellow") for note in found)] if found else []
