"""``corral events``: what happened, and who did it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.render import clock, print_line, style, write_json_line
from corral.cli.session import connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.client.blocking import Client
    from corral.wire.api.record import EventView

LATEST = 50


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Follow new events.")
@click.option(
    "--since",
    type=click.IntRange(min=0),
    metavar="SEQ",
    default=None,
    help=f"Only events after this record; default: the latest {LATEST}.",
)
@click.option("--job", "-j", metavar="JOB", default=None, help="Only events of this job, or of 35[7] or 35/trainer.")
@click.option("--queue", "-q", metavar="QUEUE", default=None, help="Only events of this queue and its children.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only this type of event, for example JobEnded.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", default=None, help="Show at most N.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.", panel="Output")
def events(**given: Any) -> None:
    """Show events: who did what, and what followed. Every event has a number, from which --since continues."""
    with connected(patience_s=60.0) as client:
        for n, event in enumerate(_events(client, given), start=1):
            if given["as_json"]:
                write_json_line(event)
            else:
                print_line(line(event))
            if n == given["limit"]:
                return


def _events(client: Client, given: dict[str, Any]) -> Iterator[EventView]:
    after = given["since"]
    if after is None:
        is_narrow = given["job"] or given["queue"] or given["types"]
        after = 0 if is_narrow and not given["follow"] else max(0, client.newest_event() - LATEST)
    return client.events(
        after, follow=given["follow"], job=_job(given["job"]), queue=given["queue"], types=given["types"]
    )


def _job(name: str | None) -> str | None:
    from corral.cli.jobs.names import job_name

    return None if name is None else job_name(name)


def line(event: EventView) -> str:
    return f"{style(f'{event.seq:>7}  {clock(event.at_ms)}', dim=True)}  {event.actor:<10}  {event.text}"
