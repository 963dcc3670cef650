"""``corral ps``: list jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.jobs.names import ALIVE, OVER, SAME_STATES
from corral.cli.jobs.waiting import progress, waiting_text
from corral.cli.option_types import Span, Words
from corral.cli.render import (
    STATE_COLOURS,
    Field,
    Listing,
    ago,
    clock,
    now_ms,
    print_line,
    print_note,
    state_text,
    style,
)
from corral.cli.session import connected
from corral.duration_text import span

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.jobs import JobSummary

_USUAL = ("id", "name", "queue", "user", "state", "gpus", "age", "time", "where")


def run_ms(job: JobSummary) -> int | None:
    if job.started_ms is None or job.state == "waiting":
        return None if job.ended_ms is None or job.started_ms is None else job.ended_ms - job.started_ms
    return (job.ended_ms or now_ms()) - job.started_ms


def _state(job: JobSummary) -> str:
    if job.array_size and job.counts is not None:
        return style(progress(job.counts), fg=STATE_COLOURS.get(job.state))
    if job.held and job.state == "waiting":
        return state_text("waiting", "(held)")
    if job.state == "failed":
        is_its_own = job.failure in (None, "user_error")
        return state_text("failed", f"(exit {job.exit_code})" if is_its_own else f"({job.failure})".replace("_", " "))
    return state_text(job.state)


def _gpus(job: JobSummary) -> str:
    """What it requests; of an array that has not ended, what it holds of that."""
    return f"{job.gpus_held}/{job.gpus}" if job.gpus and job.array_size and job.state in ALIVE else str(job.gpus)


def _nodes(job: JobSummary) -> str:
    left = job.nodes_held - len(job.nodes)
    return ",".join(job.nodes) + (f" and {left} more" if left > 0 else "")


def _where(job: JobSummary) -> str:
    """Where it runs; if it waits, why, and when it is expected to start; if it failed, what failed first."""
    if job.nodes:
        return _nodes(job)
    if job.reason:
        return f"({waiting_text(job)})"
    return "" if job.why.replace(" ", "_") in (job.state, job.failure) else job.why  # the state has both


JOBS: Listing[JobSummary] = Listing(
    {
        "id": Field(lambda job: job.id, right=True),
        "name": Field(lambda job: job.name or "-", shrinks=True),
        "queue": Field(lambda job: job.queue, shrinks=True),
        "user": Field(lambda job: job.user),
        "state": Field(_state),
        "gpus": Field(_gpus, right=True),
        "gpus_held": Field(lambda job: str(job.gpus_held), title="HELD", right=True),
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
        "reason": Field(lambda job: job.reason, shrinks=True),
        "starts_ms": Field(lambda job: clock(job.starts_ms) if job.starts_ms else "", title="STARTS"),
        "nodes": Field(_nodes, shrinks=True),
        "where": Field(_where, title="NODES (REASON)", shrinks=True),
    },
    _USUAL,
)


@click.command()
@click.option("--all", "-a", "everybody", is_flag=True, help="Include all users' jobs.", panel="Which")
@click.option("--over", "-o", is_flag=True, help="Include ended jobs.", panel="Which")
@click.option("--user", "-u", metavar="NAME", default=None, help="Only jobs of this user.", panel="Which")
@click.option(
    "--queue", "-q", metavar="QUEUE", default=None, help="Only jobs of this queue and its children.", panel="Which"
)
@click.option(
    "--state",
    "-s",
    "states",
    type=Words(*ALIVE, *OVER, same=SAME_STATES),
    default=(),
    help="Only jobs in these states.",
    panel="Which",
)
@click.option(
    "--name", "-n", metavar="NAME", default=None, help="Only jobs with this name; may end in *.", panel="Which"
)
@click.option("--label", "-l", metavar="K=V", multiple=True, help="Only jobs with this label.", panel="Which")
@click.option(
    "--since", type=Span(), metavar="TIME", default=None, help="Only jobs submitted within this time.", panel="Which"
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    panel="Which",
    help="Show at most N, the newest.",
)
@click.option("--watch", "-w", is_flag=True, help="Refresh every two seconds.", panel="Output")
@click.option("--parsable", is_flag=True, help="Print only job ids.", panel="Output")
@JOBS.options
def ps(**given: Any) -> None:
    """List jobs, newest first. By default: your own unfinished jobs."""
    with connected() as client:
        if not given["watch"]:
            _show(client, given)
            return
        while True:
            found = _jobs(client, given)
            click.clear()
            print_line(style(time.strftime("%H:%M:%S"), dim=True))
            JOBS.write(found, given["fields"], as_json=False, usual=_columns(given, found), empty=_empty(given))
            time.sleep(2)


def _show(client: Client, given: dict[str, Any]) -> None:
    found = _jobs(client, given)
    if given["parsable"]:
        for job in found:
            print_line(job.id)
        return
    JOBS.write(found, given["fields"], given["as_json"], usual=_columns(given, found), empty=_empty(given))
    if len(found) == given["limit"] and not given["as_json"]:
        print_note(f"the newest {given['limit']}; --limit shows more", dim=True)


def _jobs(client: Client, given: dict[str, Any]) -> list[JobSummary]:
    user = given["user"]
    if user is None and not given["everybody"]:
        user = client.whoami().user
    states = given["states"] or (() if given["over"] else ALIVE)
    since_ms = None if given["since"] is None else now_ms() - given["since"]
    return list(
        client.jobs(
            queue=given["queue"],
            user=user,
            states=states,
            name=given["name"],
            labels=label_pairs(given["label"]),
            since_ms=since_ms,
            limit=given["limit"],
        )
    )


def _columns(given: dict[str, Any], found: list[JobSummary]) -> tuple[str, ...]:
    """Leaves out columns without information: the user if all jobs are yours, the reason if none is known."""
    is_own = given["user"] is None and not given["everybody"]
    unsaid = {"user"} if is_own else set()
    if not any(_where(job) for job in found):
        unsaid.add("where")
    return tuple(name for name in _USUAL if name not in unsaid)


def label_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise Complaint(f"--label cannot be {pair!r}", "write it like --label project=llm")
        found[key] = value
    return found


def _empty(given: dict[str, Any]) -> str:
    more = [] if given["over"] or given["states"] else ["--over includes ended jobs"]
    more += [] if given["everybody"] or given["user"] else ["--all includes jobs of all users"]
    return "no jobs" + (f" ({', '.join(more)})" if more else "")
