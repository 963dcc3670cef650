"""``corral why``: why a job waits, which jobs block it, what would help, and the expected start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import rich_click as click

from corral.amount_text import thousandths
from corral.cli.jobs.names import job_name
from corral.cli.jobs.wait import ending
from corral.cli.render import Field, ago, ahead, count, print_line, state_text, style, table, write_json
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.jobs import GangWhy, JobView, WhyView

_COLUMNS = (Field[object](str), Field[object](str, right=True), Field[object](str), Field[object](str))


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def why(job: str, as_json: bool) -> None:
    """Show why a job waits: all reasons, jobs in the way, the smallest change that would start it, expected start."""
    with connected() as client:
        name = job_name(job)
        answer = client.why(name)
        if as_json:
            write_json(answer)
            return
        show_why(client.job(name), answer)


def show_why(job: JobView, answer: WhyView) -> None:
    name = f" ({job.name})" if job.name else ""
    print_line(f"job {job.id}{name} {_status(job, answer.at_ms)}")
    if not answer.gangs and not answer.gangs_waiting:
        print_line(ending(job) if job.ended_ms is not None else "it does not wait for anything")
        return
    for names, lines in _alike(answer.gangs, answer):
        print_line()
        print_line(style(names, bold=True))
        for line in lines:
            print_line(line)
    left = answer.gangs_waiting - len(answer.gangs)
    if left > 0:
        print_line(f"\nand {count(left, 'more gang waits', 'more gangs wait')}, for the same kinds of reasons")


def _gpus(milli: int) -> str:
    number = thousandths(milli)
    return f"{number} {'GPU' if number == '1' else 'GPUs'}"


def _status(job: JobView, now: int) -> str:
    if job.state == "waiting":
        return f"waits in {job.queue}, for {ago(job.submitted_ms, now)} so far"
    if job.ended_ms is not None:
        verb = "was cancelled" if job.state == "cancelled" else job.state
        return f"{verb} {ago(job.ended_ms, now)} ago"
    return f"is {state_text(job.state)}" + (f", for {ago(job.started_ms, now)}" if job.started_ms else "")


def _alike(gangs: Sequence[GangWhy], answer: WhyView) -> Iterator[tuple[str, Sequence[str]]]:
    """Gangs with the same lines, together: their names and the lines."""
    for lines, group in groupby(gangs, lambda gang: tuple(_gang_lines(gang, answer))):
        yield ", ".join(gang.gang for gang in group), lines


def _gang_lines(gang: GangWhy, answer: WhyView) -> Iterator[str]:
    yield from (f"  - {reason.text}" for reason in gang.reasons)
    if not gang.reasons:
        yield "  nothing blocks it: it starts in the next scheduling cycle"
    if gang.in_the_way:
        yield "\n  jobs in the way"
        rows = [
            (
                (each.job and f"job {each.job}") or "a job of others",
                _gpus(each.gpu_milli),
                f"{each.user} in {each.queue}" if each.user else "",
                f"expected to end {ahead(each.ends_ms, answer.at_ms)}"
                + (f": {each.assumption}" if each.assumption else ""),
            )
            for each in gang.in_the_way
        ]
        yield from (f"    {line}" for line in table(("", "", "", ""), rows, _COLUMNS)[1:])
    if gang.changes:
        yield "\n  it would start now with"
        yield from (f"    {change.text}" for change in gang.changes)
    if gang.starts_ms is not None:
        yield (f"\n  expected to start {ahead(gang.starts_ms, answer.at_ms)}")
