"""``corral down``: stop the server of this machine. Running jobs continue, unless ``--kill-tasks`` is given."""

from __future__ import annotations

import os
import signal
import time

import rich_click as click

from corral.cli.errors import TIMED_OUT, UNREACHABLE, Complaint
from corral.cli.option_types import Span
from corral.cli.render import count, print_line, print_note
from corral.cli.serve.data_folder import Here, data_option, is_server, other_folders, running_server, used_folder

_LOOK_S = 0.02
_NO_SERVER = "start one with: corral up; or name the data folder that corral up used with --data"
_HOLDING = ("starting", "running", "stopping")


@click.command()
@data_option
@click.option("--kill-tasks", is_flag=True, help="Cancel all running jobs and wait for them to end before stopping.")
@click.option("--timeout", type=Span(), metavar="TIME", default="60s", show_default=True, help="How long to wait.")
def down(data: str | None, kill_tasks: bool, timeout: int) -> None:
    """Stop the server on this machine. Running jobs continue and are picked up by the next corral up."""
    folder = used_folder(data)
    here = running_server(folder)
    if here is None:
        others = ", ".join(other_folders()[:3])
        hint = f"servers run with data folder {others}: name one with --data" if others else _NO_SERVER
        raise Complaint(f"no server is running with data folder {folder}", hint, exit_code=UNREACHABLE)
    until_s = time.monotonic() + timeout / 1000
    running = _running(here, kill_tasks, until_s)
    os.kill(here.pid, signal.SIGTERM)
    while is_server(here.pid):
        if time.monotonic() > until_s:
            what = f"the server (process {here.pid}) has not stopped after {timeout // 1000} s"
            hint = f"kill -9 {here.pid} is safe: nothing that was acknowledged is lost"
            raise Complaint(what, hint, exit_code=TIMED_OUT)
        time.sleep(_LOOK_S)
    print_line(f"the server at {here.url} has stopped")
    if running:
        which = "it" if running == 1 else "them"
        print_note(f"{count(running, 'job continues', 'jobs continue')}; corral up picks {which} up again")


def _running(here: Here, kill: bool, until_s: float) -> int:
    """How many jobs continue. With ``kill`` they are cancelled, and their end is waited for."""
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
        what = f"not all jobs ended in time: {error}"
        raise Complaint(what, "the server still runs", exit_code=TIMED_OUT) from None
    except ClientError as error:
        if kill:
            hint = "without --kill-tasks the server stops and they continue"
            raise Complaint(f"jobs cannot be cancelled: {error}", hint, exit_code=UNREACHABLE) from None
        return 0
