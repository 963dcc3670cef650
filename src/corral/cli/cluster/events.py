"""``corral events``: what happened, and who did it."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.option_types import span_ms
from corral.cli.render import clock, now_ms, print_line, style, write_json_line
from corral.cli.session import connected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.client.blocking import Client
    from corral.wire.api.record import EventView

LATEST = 50


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Follow new events.")
@click.option(
    "--since",
    metavar="TIME|SEQ",
    default=None,
    help=f"Only events of the last TIME (5m, 2h), or after this record number. Default: the latest {LATEST}.",
)
@click.option("--job", "-j", metavar="JOB", default=None, help="Only events of this job, or of 35[7] or 35/trainer.")
@click.option("--queue", "-q", metavar="QUEUE", default=None, help="Only events of this queue and its children.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only this type of event, for example JobEnded.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=None,
    help="Show at most N, the newest; with --follow or a record number: the next.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.", panel="Output")
def events(**given: Any) -> None:
    """Show events, the newest last: who did what, and what followed. --since continues from the number of an event."""
    with connected(patience_s=60.0) as client:
        for event in _events(client, given):
            if given["as_json"]:
                write_json_line(event)
            else:
                print_line(line(event))


def _events(client: Client, given: dict[str, Any]) -> Iterable[EventView]:
    since, limit = given["since"], given["limit"]
    is_number = since is not None and since.isascii() and since.isdecimal()
    found = client.events(
        int(since) if is_number else _first(client, given),
        follow=given["follow"],
        job=_job(given["job"]),
        queue=given["queue"],
        types=given["types"],
    )
    if limit is None:
        return found
    return islice(found, limit) if given["follow"] or is_number else deque(found, maxlen=limit)


def _job(name: str | None) -> str | None:
    from corral.cli.jobs.names import job_name

    return None if name is None else job_name(name)


def _first(client: Client, given: dict[str, Any]) -> int:
    """The record after which to start."""
    newest = client.newest_event()
    if given["since"] is not None:
        return _before(client, now_ms() - span_ms(given["since"], "--since"), newest)
    is_narrow = given["job"] or given["queue"] or given["types"]
    return 0 if is_narrow and not given["follow"] else max(0, newest - max(LATEST, given["limit"] or 0))


def _before(client: Client, at_ms: int, newest: int) -> int:
    """The last record before a time, by bisection: records are in the order of time."""
    low, high = 0, newest
    while low < high:
        middle = (low + high) // 2
        event = next(iter(client.events(middle)), None)
        low, high = (low, middle) if event is None or event.at_ms >= at_ms else (event.seq, high)
    return low


def line(event: EventView) -> str:
    return f"{style(f'{event.seq:>7}  {clock(event.at_ms)}', dim=True)}  {event.actor:<10}  {event.text}"
