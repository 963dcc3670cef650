"""``corral wait``: wait until jobs end; and how the end of a job becomes an exit code."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import CANCELLED, FAULT
from corral.cli.jobs.logs import show_end_of_log
from corral.cli.jobs.names import job_name
from corral.cli.jobs.waiting import progress
from corral.cli.option_types import Span
from corral.cli.render import print_note
from corral.cli.session import connected
from corral.duration_text import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.client.blocking import Client
    from corral.wire.api.jobs import JobSummary


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option(
    "--timeout", type=Span(), metavar="TIME", default=None, help="Give up after this time, with exit code 124."
)
@click.option("--quiet", is_flag=True, help="Print nothing; use the exit code.")
def wait(jobs: tuple[str, ...], timeout: int | None, quiet: bool) -> int:
    """Wait until jobs end, and exit with the exit code of the first that failed."""
    with connected(patience_s=60.0) as client:
        return wait_for(client, [job_name(job) for job in jobs], timeout, quiet)


def wait_for(client: Client, jobs: Sequence[str], timeout_ms: int | None, quiet: bool = False) -> int:
    until_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    code = 0
    for job in jobs:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        view = client.wait(job, timeout_s=left_s)
        if not quiet:
            show_end_of_log(client, view)
            print_note(ending(view))
        code = code or exit_code(view)
    return code


def exit_code(job: JobSummary) -> int:
    if job.state == "succeeded":
        return 0
    if job.state == "cancelled":
        return CANCELLED
    return job.exit_code or FAULT


def ending(job: JobSummary) -> str:
    """How the job ended, in one line; of an array also how many of its elements did."""
    array = f"; {progress(job.counts)}" if job.array_size and job.counts is not None else ""
    return _ending(job) + array


def _ending(job: JobSummary) -> str:
    took = f" after {span(job.ended_ms - job.started_ms)}" if job.ended_ms and job.started_ms else ""
    if job.state != "failed":
        return f"job {job.id} {job.state if job.state == 'succeeded' else 'was ' + job.state}{took}"
    return f"job {job.id} failed{took}{failure_text(job.failure, job.exit_code, job.why)}"


def failure_text(failure: str | None, exit_code: int | None, why: str = "") -> str:
    """What follows the word failed: ``: ValueError: bad batch (exit 1)``, ``: out of memory (exit 137)``."""
    kind = failure.replace("_", " ") if failure and failure != "user_error" else ""
    said = "" if why.replace(" ", "_") == failure else why
    reasons = said if kind in said else ", ".join(part for part in (kind, said) if part)
    return (f": {reasons}" if reasons else "") + (f" (exit {exit_code})" if exit_code else "")
