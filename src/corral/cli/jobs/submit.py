"""``corral submit``: submit a job file, an #SBATCH script or a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import WOULD_WAIT, Complaint
from corral.cli.jobs.options import COMMAND, JobCommand, stated
from corral.cli.render import count, print_line, print_note, write_json
from corral.cli.sbatch_options import SBATCH
from corral.cli.session import connected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.client.blocking import Client
    from corral.wire.api.jobs import SubmitAnswer
    from corral.wire.job.job_files import Parsed


@click.command(cls=JobCommand)
@click.argument("words", nargs=-1, metavar="[FILE]")
@click.option("--dry-run", is_flag=True, help="Show placement, expected start and quota; submit nothing.")
@click.option("--wait", "waits", is_flag=True, help="Wait for the job and exit with its exit code.")
@click.option("--key", metavar="KEY", default="", help="Idempotency key: repeated submissions with it create one job.")
@click.option("--parsable", is_flag=True, help="Print only the job id.", panel="Output")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
@click.pass_context
def submit(ctx: click.RichContext, /, words: tuple[str, ...], **given: Any) -> int:
    """Submit a job: a YAML file (- is standard input), a script with #SBATCH lines, or a command after --.

    Options override the file. For example: corral submit train.yaml --gpus 4,
    or: corral submit --gpus 2 --time 6h -- python train.py
    """
    from corral.cli.jobs.documents import job_documents

    jobs = job_documents(
        words, ctx.meta.get(COMMAND), stated(given), given["venv"], slurms=ctx.meta[SBATCH], quiet=given["parsable"]
    )
    with connected() as client:
        if given["dry_run"]:
            return _dry_run(client, jobs, given["as_json"])
        answers = send(client, jobs, given["key"])
        _print_submitted(answers, given)
        if not given["waits"]:
            return 0
        from corral.cli.jobs.wait import wait_for

        return wait_for(client, [answer.id for answer in answers], None)


def send(client: Client, jobs: Sequence[Parsed], key: str = "") -> Sequence[SubmitAnswer]:
    """Submit all jobs or none. Errors that the server finds are shown as errors in the file."""
    from corral.cli.jobs.documents import placed
    from corral.client.errors import Problem

    try:
        if len(jobs) == 1:
            from corral.cli.slurm.shim_parts.slurm_submission import submit_document

            return [submit_document(client, jobs[0].document, lambda text: print_note(f"note: {text}", dim=True), key)]
        return client.submit_many([job.document for job in jobs], key=key, export="NONE").jobs
    except Problem as problem:
        if not problem.faults:
            raise
        raise placed(jobs, problem.faults, len(jobs) > 1) from None


def _print_submitted(answers: Sequence[SubmitAnswer], given: dict[str, Any]) -> None:
    if given["as_json"]:
        write_json(answers)
        return
    if given["parsable"]:
        for answer in answers:
            print_line(answer.id)
        return
    for answer in answers:
        name = f" ({answer.name})" if answer.name else ""
        array = f", {count(answer.array_size, 'element')}" if answer.array_size else ""
        print_line(f"job {answer.id}{name} submitted to {answer.queue}{array}")
    if not given["waits"]:
        print_next_steps(answers[0].id)


def print_next_steps(job: str) -> None:
    """Commands that are useful next."""
    for command, why in (
        (f"corral why {job}", "why it waits, and expected start"),
        (f"corral logs -f {job}", "its output"),
        (f"corral cancel {job}", "cancel it"),
    ):
        print_note(f"  {command:<22} {why}", dim=True)


def _dry_run(client: Client, jobs: Sequence[Parsed], as_json: bool) -> int:
    from corral.cli.jobs.plan import show_plan
    from corral.client.errors import Problem

    waits = False
    answers = []
    for job in jobs:
        try:
            answer = client.dry_run(job.document, export="NONE")
        except Problem as problem:
            if not problem.faults:
                raise
            from corral.cli.jobs.documents import placed

            raise placed([job], problem.faults, False) from None
        answers.append(answer)
        waits |= any(gang.outcome == "waits" for gang in answer.gangs)
        if not as_json:
            assert job.spec is not None, "errors were shown before"
            show_plan(job.spec, answer)
    if as_json:
        write_json(answers)
    if not jobs:
        raise Complaint("there is nothing to plan")
    return WOULD_WAIT if waits else 0
