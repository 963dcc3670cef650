"""``corral run``: submit a job and follow it."""

from __future__ import annotations

from typing import Any

import rich_click as click

from corral.cli.jobs.options import COMMAND, JobCommand, stated
from corral.cli.option_types import Span
from corral.cli.render import print_note
from corral.cli.sbatch_options import SBATCH
from corral.cli.session import connected


@click.command(cls=JobCommand)
@click.argument("words", nargs=-1, metavar="[FILE]")
@click.option("--quiet", is_flag=True, help="Print only the output of the job.")
@click.option("--pty", "has_terminal", is_flag=True, help="Run the command with a terminal, for interactive work.")
@click.option(
    "--max-wait", type=Span(), metavar="TIME", help="With --pty: cancel the job if it has not started by then."
)
@click.pass_context
def run(ctx: click.RichContext, /, words: tuple[str, ...], **given: Any) -> int:
    """Run a job, show its output until it ends, and exit with its exit code.

    Ctrl-C detaches and leaves the job running; a second Ctrl-C cancels it.
    For example: corral run --gpus 2 -- python train.py
    """
    from corral.cli.errors import Complaint
    from corral.cli.jobs.attach import attach
    from corral.cli.jobs.documents import job_documents
    from corral.cli.jobs.submit import send

    command = ctx.meta.get(COMMAND)
    if given["has_terminal"]:
        if words:
            raise Complaint("--pty runs a command, not a file", "write it like: corral run --pty --gpus 1 -- bash")
        from corral.cli.steps.interactive import HOLDER

        ctx.meta[COMMAND] = ("/bin/sh", "-c", HOLDER)
    jobs = job_documents(
        words, ctx.meta.get(COMMAND), stated(given), given["venv"], slurms=ctx.meta[SBATCH], quiet=given["quiet"]
    )
    if len(jobs) != 1:
        raise Complaint(f"run takes one job, and the file has {len(jobs)}", "use corral submit for several jobs")
    with connected(patience_s=60.0) as client:
        (answer,) = send(client, jobs)
        if given["has_terminal"]:
            from corral.cli.steps.interactive import run_terminal

            return run_terminal(client, answer.id, command or ("bash", "-l"), given["max_wait"])
        if not given["quiet"]:
            name = f" ({answer.name})" if answer.name else ""
            print_note(f"job {answer.id}{name} submitted to {answer.queue}; Ctrl-C detaches", bold=True)
        return attach(client, answer.id, answer.seq - 1, given["quiet"])
