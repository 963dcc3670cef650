"""``corral ps``: which jobs there are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.render import Field, Listing, ago, clock, now_ms, say, span, state_text, style, tell
from corral.cli.session import connected
from corral.cli.words import Span, Words

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.jobs import JobSummary

ALIVE = ("waiting", "starting", "running", "stopping")
OVER = ("succeeded", "failed", "cancelled")
_USUAL = ("id", "name", "queue", "user", "state", "gpus", "age", "time", "why")


def run_ms(job: JobSummary) -> int | None:
    if job.started_ms is None or job.state == "waiting":
        return None if job.ended_ms is None or job.started_ms is None else job.ended_ms - job.started_ms
    return (job.ended_ms or now_ms()) - job.started_ms


def _state(job: JobSummary) -> str:
    if job.held and job.state == "waiting":
        return state_text("waiting", "(held)")
    if job.state == "failed":
        return state_text("failed", f"({job.failure or job.exit_code})")
    return state_text(job.state)


JOBS: Listing[JobSummary] = Listing(
    {
        "id": Field(lambda job: job.id, right=True),
        "name": Field(lambda job: job.name or "-", shrinks=True),
        "queue": Field(lambda job: job.queue, shrinks=True),
        "user": Field(lambda job: job.user),
        "state": Field(_state),
        "gpus": Field(lambda job: str(job.gpus), right=True),
        "tasks": Field(lambda job: str(job.tasks), right=True),
        "priority": Field(lambda job: str(job.priority), right=True),
        "age": Field(lambda job: ago(job.submitted_ms), right=True, value=lambda job: now_ms() - job.submitted_ms),
        "time": Field(lambda job: "" if run_ms(job) is None else span(run_ms(job) or 0), right=True, value=run_ms),
        "submitted_ms": Field(lambda job: clock(job.submitted_ms), title="SUBMITTED"),
        "started_ms": Field(lambda job: clock(job.started_ms) if job.started_ms else "", title="STARTED"),
        "ended_ms": Field(lambda job: clock(job.ended_ms) if job.ended_ms else "", title="ENDED"),
        "exit_code": Field(lambda job: "" if job.exit_code is None else str(job.exit_code), title="EXIT", right=True),
        "failure": Field(lambda job: job.failure or ""),
        "attempts": Field(lambda job: str(job.attempts), title="RUNS", right=True),
        "array_size": Field(lambda job: str(job.array_size or ""), title="ARRAY", right=True),
        "labels": Field(lambda job: ",".join(f"{key}={value}" for key, value in job.labels.items()), shrinks=True),
        "held": Field(lambda job: "held" if job.held else ""),
        "why": Field(lambda job: job.why, shrinks=True),
    },
    _USUAL,
)


@click.command()
@click.option("--all", "-a", "everybody", is_flag=True, help="Those of everybody that you may see.", panel="Which")
@click.option("--over", "-o", is_flag=True, help="Those that are over, too.", panel="Which")
@click.option("--user", "-u", metavar="NAME", default=None, help="Those of one user.", panel="Which")
@click.option("--queue", "-q", metavar="QUEUE", default=None, help="In this queue and below it.", panel="Which")
@click.option("--state", "-s", "states", type=Words(*ALIVE, *OVER), default=(), help="In these states.", panel="Which")
@click.option("--name", "-n", metavar="NAME", default=None, help="Of this name; it may end in *.", panel="Which")
@click.option("--label", "-l", metavar="K=V", multiple=True, help="With this label.", panel="Which")
@click.option("--since", type=Span(), metavar="TIME", default=None, help="Submitted within this time.", panel="Which")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    panel="Which",
    help="No more than so many, the newest.",
)
@click.option("--watch", "-w", is_flag=True, help="Show it again every two seconds.", panel="Output")
@click.option("--parsable", is_flag=True, help="Print ids alone.", panel="Output")
@JOBS.options
def ps(**given: Any) -> None:
    """List jobs, newest first: your own that are not over, unless you ask for others."""
    with connected() as client:
        if not given["watch"]:
            _show(client, given)
            return
        while True:
            found = _jobs(client, given)
            click.clear()
            tell(style(time.strftime("%H:%M:%S"), dim=True))
            JOBS.write(found, given["fields"], as_json=False, usual=_columns(given, found), empty=_empty(given))
            time.sleep(2)


def _show(client: Client, given: dict[str, Any]) -> None:
    found = _jobs(client, given)
    if given["parsable"]:
        for job in found:
            tell(job.id)
        return
    JOBS.write(found, given["fields"], given["as_json"], usual=_columns(given, found), empty=_empty(given))
    if len(found) == given["limit"] and not given["as_json"]:
        say(f"the newest {given['limit']}; --limit shows more", dim=True)


def _jobs(client: Client, given: dict[str, Any]) -> list[JobSummary]:
    user = given["user"]
    if user is None and not given["everybody"]:
        user = client.whoami().user
    states = given["states"] or (() if given["over"] else ALIVE)
    since_ms = None if given["since"] is None else now_ms() - given["since"]
    return list(
        client.jobs(
            queue=given["queue"], user=user, states=states, name=given["name"], labels=_labels(given["label"]),
            since_ms=since_ms, limit=given["limit"],
        )
    )  # fmt: skip


def _columns(given: dict[str, Any], found: list[JobSummary]) -> tuple[str, ...]:
    """Without what goes without saying: whose they are where all are one's own; why, where nothing is known."""
    is_own = given["user"] is None and not given["everybody"]
    unsaid = {"user"} if is_own else set()
    if not any(job.why for job in found):
        unsaid.add("why")
    return tuple(name for name in _USUAL if name not in unsaid)


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise Complaint(f"--label cannot be {pair!r}", "write it like --label project=llm")
        found[key] = value
    return found


def _empty(given: dict[str, Any]) -> str:
    more = [] if given["over"] or given["states"] else ["--over shows those that are over"]
    more += [] if given["everybody"] or given["user"] else ["--all those of everybody"]
    return "no jobs" + (f" ({', '.join(more)})" if more else "")
