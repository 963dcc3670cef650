"""``corral usage``: GPU time by queue, user and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.render import Field, Listing, gpu_hours, hours_field, now_ms, print_note
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.record import UsageLine

USAGE: Listing[UsageLine] = Listing(
    {
        "day": Field(lambda line: line.day),
        "queue": Field(lambda line: line.queue),
        "user": Field(lambda line: line.user),
        "gpu_hours": hours_field(lambda line: line.gpu_ms, "GPU HOURS"),
        "gpu_hours_lost": hours_field(lambda line: line.lost_gpu_ms, "LOST"),
        "jobs": Field(lambda line: str(line.jobs), right=True),
        "gpu_ms": Field(lambda line: gpu_hours(line.gpu_ms), right=True, hidden=True),
        "lost_gpu_ms": Field(lambda line: gpu_hours(line.lost_gpu_ms), right=True, hidden=True),
    },
    ("day", "queue", "user", "gpu_hours", "gpu_hours_lost", "jobs"),
)


@click.command()
@click.option("--queue", "-q", metavar="QUEUE", help="Only this queue and its children.")
@click.option("--user", "-u", metavar="NAME", help="Only this user.")
@click.option("--since", metavar="DAY", help="First day (UTC), such as 2026-05-31, or 7d for a week ago.")
@click.option("--until", metavar="DAY", help="Last day (UTC), written like --since.")
@USAGE.options
def usage(fields: str | None, as_json: bool, **given: Any) -> None:
    """Show GPU time by queue, user and day (UTC), and how much of it was lost to evictions and failures."""
    for option in ("since", "until"):
        if given[option] is not None:
            given[option] = _day(option, given[option])
    with connected() as client:
        found = client.usage(**given)
    USAGE.write(found.lines, fields, as_json, empty="no usage")
    if found.lines and not as_json:
        print_note(f"total: {gpu_hours(found.gpu_ms)} GPU hours, {gpu_hours(found.lost_gpu_ms)} lost", dim=True)


def _day(option: str, text: str) -> str:
    """A day (UTC) as the server reads it, from a date or from the time that has passed since."""
    import time

    from corral.core.intake.refusal import Refusal
    from corral.wire.durations import parse_span

    try:
        time.strptime(text, "%Y-%m-%d")
        return text
    except ValueError:
        passed_ms = parse_span(text)
    if isinstance(passed_ms, Refusal):
        hint = "write it like 2026-05-31, or 7d for a week ago"
        raise Complaint(f"--{option}: {text!r} is neither a day nor a duration", hint)
    return time.strftime("%Y-%m-%d", time.gmtime(max(0, now_ms() - passed_ms) / 1000))
