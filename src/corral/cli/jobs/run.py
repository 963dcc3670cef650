"""``corral run``: submit and stay."""

from __future__ import annotations

from typing import Any

import rich_click as click

from corral.cli.jobs.options import COMMAND, JobCommand, stated
from corral.cli.render import say
from corral.cli.session import connected


@click.command(cls=JobCommand)
@click.argument("words", nargs=-1, metavar="[FILE]")
@click.option("--quiet", is_flag=True, help="Only what the job writes.")
@click.pass_context
def run(ctx: click.RichContext, /, words: tuple[str, ...], **given: Any) -> int:
    """Run a job and show what it writes until it is over; leave with its exit code.

    Ctrl-C detaches, and the job goes on; a second Ctrl-C cancels it.
    For example: corral run --gpus 2 -- python train.py
    """
    from corral.cli.complaint import Complaint
    from corral.cli.jobs.attach import attach
    from corral.cli.jobs.documents import job_documents
    from corral.cli.jobs.submit import send

    jobs = job_documents(words, ctx.meta.get(COMMAND), stated(given))
    if len(jobs) != 1:
        raise Complaint(f"run takes one job, and there are {len(jobs)} in the file", "corral submit takes several")
    with connected(patience_s=60.0) as client:
        (answer,) = send(client, jobs)
        if not given["quiet"]:
            say(f"job {answer.id} submitted to {answer.queue}; Ctrl-C detaches", bold=True)
        return attach(client, answer.id, answer.seq - 1, given["quiet"])
