"""``corral cancel, hold, release, requeue, priority``: change jobs. Several at once are changed one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.jobs.logs import named
from corral.cli.render import say, tell
from corral.cli.session import complaint_of, connected

if TYPE_CHECKING:
    from corral.client.blocking import Client

Change = Callable[["Client", str], Any]

_jobs = click.argument("jobs", nargs=-1, required=True, metavar="JOB...")


@click.command()
@click.option("--now", is_flag=True, help="Kill what runs at once, without its grace.")
@_jobs
def cancel(now: bool, jobs: tuple[str, ...]) -> int:
    """End jobs for good. What runs is asked to save and leave, and has its grace for that."""
    return _change(jobs, lambda client, job: client.cancel(job, now=now), "is cancelled")


@click.command()
@_jobs
def hold(jobs: tuple[str, ...]) -> int:
    """Keep jobs from starting until they are released."""
    return _change(jobs, lambda client, job: client.hold(job), "is held")


@click.command()
@_jobs
def release(jobs: tuple[str, ...]) -> int:
    """Let held jobs go on."""
    return _change(jobs, lambda client, job: client.release(job), "is released")


@click.command()
@_jobs
def requeue(jobs: tuple[str, ...]) -> int:
    """Stop what runs of jobs and let them wait for another run. It may save first, as when it is preempted."""
    return _change(jobs, lambda client, job: client.requeue(job), "goes back to its queue")


@click.command()
@click.argument("value", type=int, metavar="PRIORITY")
@_jobs
def priority(value: int, jobs: tuple[str, ...]) -> int:
    """Change the priority of jobs. A higher one goes first, also before other queues; see the ceiling of the queue."""
    return _change(jobs, lambda client, job: client.set_priority(job, value), f"has priority {value}")


def _change(jobs: tuple[str, ...], change: Change, done: str) -> int:
    """All of them, whatever becomes of each; the exit code is that of the first that could not be changed."""
    from corral.client.errors import Problem

    code = 0
    ids = [named(job)[0] for job in jobs]
    with connected() as client:
        for job in ids:
            try:
                change(client, job)
                tell(f"job {job} {done}")
            except Problem as problem:
                complaint = complaint_of(problem)
                if len(ids) == 1:
                    raise complaint from None
                code = code or complaint.code
                say(f"error: job {job}: {complaint.message}")
    return code
