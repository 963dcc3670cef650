"""``corral usage``: GPU time by queue, user and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.render import Field, Listing, gpu_hours, print_note
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.record import UsageLine

USAGE: Listing[UsageLine] = Listing(
    {
        "day": Field(lambda line: line.day),
        "queue": Field(lambda line: line.queue),
        "user": Field(lambda line: line.user),
        "gpu_ms": Field(lambda line: gpu_hours(line.gpu_ms), title="GPU HOURS", right=True),
        "lost_gpu_ms": Field(lambda line: gpu_hours(line.lost_gpu_ms), title="LOST", right=True),
        "jobs": Field(lambda line: str(line.jobs), right=True),
    },
    ("day", "queue", "user", "gpu_ms", "lost_gpu_ms", "jobs"),
)


@click.command()
@click.option("--queue", "-q", metavar="QUEUE", help="Only this queue and its children.")
@click.option("--user", "-u", metavar="NAME", help="Only this user.")
@click.option("--since", metavar="YYYY-MM-DD", help="First day (UTC).")
@click.option("--until", metavar="YYYY-MM-DD", help="Last day (UTC).")
@USAGE.options
def usage(fields: str | None, as_json: bool, **given: Any) -> None:
    """Show GPU time by queue, user and day (UTC), and how much of it was lost to evictions and failures."""
    for option in ("since", "until"):
        _check_day(option, given[option])
    with connected() as client:
        found = client.usage(**given)
    USAGE.write(found.lines, fields, as_json, empty="no usage")
    if found.lines and not as_json:
        print_note(f"total: {gpu_hours(found.gpu_ms)} GPU hours, {gpu_hours(found.lost_gpu_ms)} lost", dim=True)


def _check_day(option: str, text: str | None) -> None:
    import time

    try:
        if text is not None:
            time.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise Complaint(f"--{option} cannot be {text!r}", "write it like 2026-05-31") from None
