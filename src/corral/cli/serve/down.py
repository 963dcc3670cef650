"""``corral down``: stop the server of this machine. What runs goes on, unless told otherwise."""

from __future__ import annotations

import os
import signal
import time

import rich_click as click

from corral.cli.complaint import TIMED_OUT, UNREACHABLE, Complaint
from corral.cli.render import count, say, tell
from corral.cli.serve.place import Here, data_folder, data_option, is_server, running_server
from corral.cli.words import Span

_LOOK_S = 0.02
_HOLDING = ("starting", "running", "stopping")


@click.command()
@data_option
@click.option("--kill-tasks", is_flag=True, help="Cancel every job that runs, and wait for its end, before stopping.")
@click.option("--timeout", type=Span(), metavar="TIME", default="60s", show_default=True, help="How long to wait.")
def down(data: str | None, kill_tasks: bool, timeout: int) -> None:
    """Stop the server of this machine. Jobs that run go on, and the next corral up takes them up again."""
    folder = data_folder(data)
    here = running_server(folder)
    if here is None:
        hint = "--data names the folder of the server you mean"
        raise Complaint(f"no server runs with its data in {folder}", hint, exit_code=UNREACHABLE)
    until_s = time.monotonic() + timeout / 1000
    running = _running(here, kill_tasks, until_s)
    os.kill(here.pid, signal.SIGTERM)
    while is_server(here.pid):
        if time.monotonic() > until_s:
            what = f"the server (process {here.pid}) has not stopped after {timeout // 1000} s"
            hint = f"kill -9 {here.pid} is safe: nothing that was acknowledged is lost"
            raise Complaint(what, hint, exit_code=TIMED_OUT)
        time.sleep(_LOOK_S)
    tell(f"the server at {here.url} has stopped")
    if running:
        say(f"{count(running, 'job goes on', 'jobs go on')}; corral up takes them up again")


def _running(here: Here, kill: bool, until_s: float) -> int:
    """How many jobs go on; with ``kill`` they are cancelled and waited for first."""
    from corral.client.blocking import Client
    from corral.client.credentials import find_credentials
    from corral.client.errors import ClientError, Timeout

    try:
        token = find_credentials({**os.environ, "CORRAL_URL": here.url}).token
        with Client(here.url, token, patience_s=2.0) as client:
            jobs = [job.id for job in client.jobs(states=_HOLDING)]
            for job in jobs if kill else ():
                client.cancel(job)
            for job in jobs if kill else ():
                client.wait(job, timeout_s=max(0.1, until_s - time.monotonic()))
            return 0 if kill else len(jobs)
    except Timeout as error:
        what = f"not everything has ended in time: {error}"
        raise Complaint(what, "the server still runs", exit_code=TIMED_OUT) from None
    except ClientError as error:
        if kill:
            hint = "without --kill-tasks the server stops and they go on"
            raise Complaint(f"jobs cannot be cancelled: {error}", hint, exit_code=UNREACHABLE) from None
        return 0
