"""``corral exec`` and ``corral shell``: a process inside a running job, from outside.

It is started by the supervisor of a task, with the account, limits and environment of the task. The connection goes
through the server; if that restarts, the process continues and the connection is made again.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.session import complaint_of

if TYPE_CHECKING:
    from corral.runtime.steps.seat_link import SeatFinder

_SHELL = 'exec "${SHELL:-/bin/sh}"'


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--task", type=click.IntRange(0), default=0, help="Number of the task. Default: the first.")
@click.option("--tty", "-t", is_flag=True, help="Give the process a terminal.")
@click.argument("job")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
def execute(job: str, command: tuple[str, ...], task: int, tty: bool) -> int:
    """Run a command inside a running job.

    It runs as the job does: with its account, environment, limits and GPUs. Standard input is passed on. The exit code
    is that of the command.
    """
    words = list(command[1:] if command[0] == "--" else command)
    return run_in_job(job, task, words, has_terminal=tty, what="exec")


@click.command()
@click.option("--task", type=click.IntRange(0), default=0, help="Number of the task. Default: the first.")
@click.argument("job")
def shell(job: str, task: int) -> int:
    """Open a shell inside a running job.

    Keys, Ctrl-C and the size of the terminal are passed on. The shell ends with the job.
    """
    return run_in_job(job, task, ["/bin/sh", "-c", _SHELL], has_terminal=True, what="shell")


def run_in_job(job: str, task: int, command: list[str], *, has_terminal: bool, what: str) -> int:
    from corral.cli.steps.terminal import give_terminal
    from corral.client.errors import Problem
    from corral.runtime.steps.seat_link import StepRefused
    from corral.runtime.steps.step_client import StepPlan, StepRun

    finder = finder_of(job, what)
    try:
        finder.find(task).close()  # so that errors are reported before the terminal is raw
    except Problem as problem:
        raise complaint_of(problem) from None
    plan = StepPlan({}, command)
    plan.env = None
    plan.env_of = lambda _rank, _shares, _step: {"TERM": os.environ.get("TERM", "dumb")} if has_terminal else {}
    plan.input = 0
    if has_terminal:
        give_terminal(plan)
    plan.own_seat = task
    try:
        return StepRun(finder, plan, lambda text: print(f"corral {what}: {text}\r", file=sys.stderr, flush=True)).run()
    except StepRefused as refused:
        raise Complaint(refused.why) from None
    except Problem as problem:
        raise complaint_of(problem) from None


def finder_of(job: str, what: str) -> SeatFinder:
    """Connections to the tasks of a job, with the user's credentials. ``what``: for the audit record."""
    from corral.cli.steps.through_server import ThroughServer
    from corral.client.credentials import find_credentials
    from corral.client.errors import ClientError

    name, _, index = job.partition("[")
    try:
        return ThroughServer(find_credentials(), name, index.rstrip("]"), what)
    except ClientError as error:
        raise complaint_of(error) from None
