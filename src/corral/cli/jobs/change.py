"""``corral cancel, hold, release, requeue, priority``: change jobs. Several jobs are changed one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.jobs.logs import named
from corral.cli.render import print_line, print_note
from corral.cli.session import complaint_of, connected

if TYPE_CHECKING:
    from corral.client.blocking import Client

Change = Callable[["Client", str], Any]

_jobs = click.argument("jobs", nargs=-1, required=True, metavar="JOB...")


@click.command()
@click.option("--now", is_flag=True, help="Kill running tasks at once, without a grace period.")
@_jobs
def cancel(now: bool, jobs: tuple[str, ...]) -> int:
    """Cancel jobs. Running jobs are warned and get their grace period to save."""
    return _change(jobs, lambda client, job: client.cancel(job, now=now), "is cancelled")


@click.command()
@_jobs
def hold(jobs: tuple[str, ...]) -> int:
    """Hold jobs: they do not start until they are released."""
    return _change(jobs, lambda client, job: client.hold(job), "is held")


@click.command()
@_jobs
def release(jobs: tuple[str, ...]) -> int:
    """Release held jobs."""
    return _change(jobs, lambda client, job: client.release(job), "is released")


@click.command()
@_jobs
def requeue(jobs: tuple[str, ...]) -> int:
    """Stop jobs and requeue them. They are warned first, as in a preemption."""
    return _change(jobs, lambda client, job: client.requeue(job), "is requeued")


@click.command()
@click.argument("value", type=int, metavar="PRIORITY")
@_jobs
def priority(value: int, jobs: tuple[str, ...]) -> int:
    """Change the priority of jobs, up to the ceiling of the queue. A higher priority runs first, across queues."""
    return _change(jobs, lambda client, job: client.set_priority(job, value), f"has priority {value}")


def _change(jobs: tuple[str, ...], change: Change, done: str) -> int:
    """Change every job, even if some fail. The exit code is that of the first failure."""
    from corral.client.errors import Problem

    code = 0
    ids = [named(job)[0] for job in jobs]
    with connected() as client:
        for job in ids:
            try:
                change(client, job)
                print_line(f"job {job} {done}")
            except Problem as problem:
                complaint = complaint_of(problem)
                if len(ids) == 1:
                    raise complaint from None
                code = code or complaint.code
                print_note(f"error: job {job}: {complaint.message}")
    return code
