"""``corral attach``: follow a job that was submitted before, as ``corral run`` follows its own."""

from __future__ import annotations

import rich_click as click

from corral.cli.errors import REFUSED, Complaint
from corral.cli.jobs.names import job_name
from corral.cli.session import connected


@click.command("attach")
@click.argument("job")
@click.option("--quiet", is_flag=True, help="Print only the output of the job.")
def reattach(job: str, quiet: bool) -> int:
    """Follow a job as if it had been started with corral run, and exit with its exit code.

    Shows its output from the beginning. Ctrl-C detaches; a second Ctrl-C cancels the job. A process of the job has no
    standard input: corral shell gives you one beside it.
    """
    from corral.cli.jobs.attach import attach

    id = job_name(job)
    with connected(patience_s=60.0) as client:
        view = client.job(id)
        last = max((event.seq for event in client.events(job=view.id)), default=0)
        if view.ended_ms is not None:
            raise Complaint(f"job {view.id} has ended ({view.state})", f"its output: corral logs {id}", REFUSED)
        return attach(client, view.id, last, quiet, has_started=bool(view.started_ms))
