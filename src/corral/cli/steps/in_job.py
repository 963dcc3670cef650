"""``corral exec`` and ``corral shell``: a process inside a running job, from outside.

It is started by the supervisor of a task, with the account, limits and environment of the task. The connection goes
through the server; if that restarts, the process continues and the connection is made again.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.session import complaint_of

if TYPE_CHECKING:
    from corral.client.errors import Problem
    from corral.io.duplex import DuplexRefused

_SHELL = 'exec "${SHELL:-/bin/sh}"'
_CONNECT_S = 15.0


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
    from corral.client.credentials import find_credentials
    from corral.runtime.steps.seat_link import StepRefused
    from corral.runtime.steps.step_client import StepPlan, StepRun

    name, _, index = job.partition("[")
    finder = _ThroughServer(find_credentials(), name, index.rstrip("]"), what)
    finder.find(task).close()  # so that errors are reported before the terminal is raw
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


class _ThroughServer:
    """Connections to the seats of a job, each copied by a thread of its own."""

    def __init__(self, credentials: Any, job: str, gang: str, what: str) -> None:
        self._credentials, self._job = credentials, job
        self._gang, self._what = gang, what

    def find(self, seat: int) -> socket.socket:
        import ssl

        from corral.io.duplex import Duplex, DuplexRefused
        from corral.io.http import BadAnswer
        from corral.runtime.steps.seat_link import NotReachable, StepRefused

        query = urlencode({"gang": self._gang, "task": seat, "what": self._what})
        known = self._credentials
        url = f"{known.url}/v1/jobs/{quote(self._job, safe='')}/stream?{query}"
        tls = ssl.create_default_context(cafile=known.ca or None) if url.startswith("https:") else None
        try:
            there = Duplex(url, {"Authorization": f"Bearer {known.token}"}, tls, _CONNECT_S)
        except DuplexRefused as refused:
            if refused.status >= 500:
                raise NotReachable(str(_problem(refused))) from None
            raise complaint_of(_problem(refused)) from None
        except (OSError, BadAnswer) as lost:
            raise NotReachable(f"the server does not answer: {lost}") from None
        if seat < 0:
            raise StepRefused("there is no such task")
        own, theirs = socket.socketpair()
        threading.Thread(target=_copy, args=(there, theirs), daemon=True).start()
        return own


def _copy(there: Any, theirs: socket.socket) -> None:
    from corral.runtime.steps import step_frames

    try:
        there.splice(theirs, step_frames.frame(step_frames.QUIT))
    finally:
        there.close()
        theirs.close()


def _problem(refused: DuplexRefused) -> Problem:
    """What the server said, as the client raises it."""
    import json

    from corral.client.errors import NotFound, Problem

    try:
        said = dict(json.loads(refused.body))
    except (ValueError, TypeError):
        said = {}
    detail = str(said.get("detail", "")) or f"the server answered with status {refused.status}"
    kind = NotFound if refused.status == 404 else Problem
    return kind(refused.status, str(said.get("code", "")), detail, str(said.get("hint", "")))
