"""``corral why``: why a job waits, who is in the way, what would help, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.jobs.wait import ending
from corral.cli.render import Field, ago, ahead, count, milli, state_text, style, table, tell, write_json
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.jobs import GangWhy, JobView, WhyView

_COLUMNS = (Field[object](str), Field[object](str, right=True), Field[object](str), Field[object](str))


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def why(job: str, as_json: bool) -> None:
    """Say why a job waits: every reason, who is in the way, the smallest change that would help, and when it starts."""
    with connected() as client:
        told = client.why(job)
        if as_json:
            write_json(told)
            return
        show_why(client.job(job), told)


def show_why(job: JobView, told: WhyView) -> None:
    name = f" ({job.name})" if job.name else ""
    tell(f"job {job.id}{name} {_standing(job, told.at_ms)}")
    if not told.gangs and not told.gangs_waiting:
        tell(ending(job) if job.ended_ms is not None else "it does not wait for anything")
        return
    for gang in told.gangs:
        _show_gang(gang, told)
    left = told.gangs_waiting - len(told.gangs)
    if left > 0:
        tell(f"\nand {count(left, 'more gang waits', 'more gangs wait')}, for such reasons")


def _standing(job: JobView, now: int) -> str:
    if job.state == "waiting":
        return f"waits in {job.queue}, for {ago(job.submitted_ms, now)} so far"
    if job.ended_ms is not None:
        verb = "was cancelled" if job.state == "cancelled" else job.state
        return f"{verb} {ago(job.ended_ms, now)} ago"
    return f"is {state_text(job.state)}" + (f", for {ago(job.started_ms, now)}" if job.started_ms else "")


def _show_gang(gang: GangWhy, told: WhyView) -> None:
    tell()
    tell(style(gang.gang, bold=True))
    for reason in gang.reasons:
        tell(f"  - {reason.text}")
    if not gang.reasons:
        tell("  nothing keeps it: it starts at the next opportunity")
    if gang.in_the_way:
        tell("\n  in the way")
        rows = [
            ((each.job and f"job {each.job}") or "a job of others", f"{milli(each.gpu_milli)} GPUs",
             f"{each.user} in {each.queue}" if each.user else "", f"expected to end {ahead(each.ends_ms, told.at_ms)}")
            for each in gang.in_the_way
        ]  # fmt: skip
        for line in table(("", "", "", ""), rows, _COLUMNS)[1:]:
            tell(f"    {line}")
    if gang.changes:
        tell("\n  it would start now with")
        for change in gang.changes:
            tell(f"    {change.text}")
    if gang.starts_ms is not None:
        tell(f"\n  expected to start {ahead(gang.starts_ms, told.at_ms)}")
