"""``corral cancel, hold, release, requeue, priority``: change jobs, by their names or by filters, in one request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import NOT_FOUND, REFUSED, Complaint
from corral.cli.jobs.names import ALIVE, SAME_STATES, job_name
from corral.cli.option_types import Span, Words
from corral.cli.render import count, now_ms, print_line, print_note
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.jobs import ChangeJobsAnswer

EVERYONE = "*"
_LINES_MAX = 20  # lines about single jobs

_jobs = click.argument("jobs", nargs=-1, metavar="[JOB]...")
_panel: dict[str, Any] = {"panel": "Filter"}
_FILTERS = (
    click.option("--name", "-n", metavar="NAME", help="Jobs with this name; may end in *.", **_panel),
    click.option(
        "--state",
        "-s",
        "states",
        type=Words(*ALIVE, same=SAME_STATES),
        default=(),
        help="Jobs in these states.",
        **_panel,
    ),
    click.option(
        "--user", "-u", metavar="NAME", help="Jobs of this user; '*': of all users. Default: yours.", **_panel
    ),
    click.option("--queue", "-q", metavar="QUEUE", help="Jobs of this queue and its children.", **_panel),
    click.option("--label", "-l", metavar="K=V", multiple=True, help="Jobs with this label.", **_panel),
    click.option(
        "--before", type=Span(), metavar="TIME", help="Jobs submitted longer ago than this: 2h, 7d.", **_panel
    ),
    click.option("--all", "every", is_flag=True, help="All your unfinished jobs.", **_panel),
    click.option(
        "--yes", "-y", is_flag=True, help="Do not ask. Needed with filters where there is no terminal.", **_panel
    ),
)


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@click.command()
@click.option("--now", is_flag=True, help="Kill running tasks at once, without a grace period.")
@_filters
@_jobs
def cancel(now: bool, jobs: tuple[str, ...], **given: Any) -> int:
    """Cancel jobs. Running jobs are warned and get their grace period to save.

    JOB may be 35, 35[7], 35[3-9], 35[1,4-6] or 35/trainer. Filters cancel all jobs that meet all of them."""
    return _change("cancel", jobs, given, ("is cancelled", "are cancelled"), now=now)


@click.command()
@_filters
@_jobs
def hold(jobs: tuple[str, ...], **given: Any) -> int:
    """Hold jobs: they do not start until they are released.

    JOB may be 35, 35[7], 35[3-9], 35[1,4-6] or 35/trainer. Filters hold all jobs that meet all of them."""
    return _change("hold", jobs, given, ("is held", "are held"))


@click.command()
@_filters
@_jobs
def release(jobs: tuple[str, ...], **given: Any) -> int:
    """Release held jobs.

    JOB may be 35, 35[7], 35[3-9], 35[1,4-6] or 35/trainer. Filters release all held jobs that meet all of them."""
    return _change("release", jobs, given, ("is released", "are released"))


@click.command()
@_filters
@_jobs
def requeue(jobs: tuple[str, ...], **given: Any) -> int:
    """Stop jobs and requeue them. They are warned first, as in a preemption.

    JOB may be 35, 35[7], 35[3-9], 35[1,4-6] or 35/trainer. Filters requeue all running jobs that meet all of them."""
    return _change("requeue", jobs, given, ("is requeued", "are requeued"))


@click.command(context_settings={"ignore_unknown_options": True})  # -5 is a priority
@_filters
@click.argument("words", nargs=-1, metavar="PRIORITY [JOB]...")
def priority(words: tuple[str, ...], **given: Any) -> int:
    """Change the priority of jobs, up to the ceiling of the queue. A higher priority runs first, across queues.

    PRIORITY is a number, or low, normal or high; a word may also stand after the jobs.
    JOB may be 35, 35[7], 35[3-9], 35[1,4-6] or 35/trainer. Filters change all jobs that meet all of them."""
    value, jobs = _priority(words)
    return _change("priority", jobs, given, (f"has priority {value}", f"have priority {value}"), priority=value)


def _priority(words: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    from corral.wire.job.timing import PRIORITIES

    if not words:
        raise Complaint("no priority is given", "write low, normal, high or a number: corral priority high 25")
    first, *jobs = words if words[0] in PRIORITIES or words[-1] not in PRIORITIES else (words[-1], *words[:-1])
    if first not in PRIORITIES and not first.removeprefix("-").isdecimal():
        raise Complaint(f"{first!r} is not a priority", "write low, normal, high or a number: corral priority high 25")
    return PRIORITIES[first] if first in PRIORITIES else int(first), tuple(jobs)


def _change(change: str, jobs: tuple[str, ...], given: dict[str, Any], done: tuple[str, str], **more: Any) -> int:
    wanted = _filter(given)
    if bool(jobs) == bool(wanted):
        what = "both jobs and filters are given" if jobs else "no jobs are named"
        verb = f"corral {change} high" if change == "priority" else f"corral {change}"
        raise Complaint(what, f"{verb} 35, {verb} '35[3-9]', or {verb} --name 'sweep*'")
    with connected() as client:
        if len(jobs) == 1:
            _change_one(client, change, job_name(jobs[0]), **more)
            print_line(f"job {jobs[0]} {done[0]}")
            return 0
        if jobs:
            answer = client.change_jobs(change, [job_name(job) for job in jobs], **more)
            return _report_named(jobs, answer, done)
        if wanted["user"] is None:
            wanted["user"] = client.whoami().user
        elif wanted["user"] == EVERYONE:
            wanted["user"] = None
            wanted["all"] = True
        if not given["yes"] and not _confirmed(client, change, wanted, more):
            return 0
        return _report_matching(client.change_jobs(change, filter=wanted, **more), done)


def _change_one(client: Client, change: str, job: str, **more: Any) -> None:
    """By its own request, which servers of all versions know; a refusal is an error of the command."""
    if change == "priority":
        client.set_priority(job, more["priority"])
    else:
        getattr(client, change)(job, **more)


def _filter(given: dict[str, Any]) -> dict[str, Any]:
    """The filter as the API takes it; empty if none was given."""
    from corral.cli.jobs.ps import label_pairs

    names = ("name", "states", "user", "queue", "label", "before", "every")
    if not any(given[name] for name in names):
        return {}
    pairs = tuple(f"{key}={value}" for key, value in label_pairs(given["label"]).items())
    return {
        "name": given["name"],
        "states": tuple(given["states"]),
        "user": given["user"],
        "queue": given["queue"],
        "labels": pairs,
        "before_ms": None if given["before"] is None else now_ms() - given["before"],
        "all": given["every"],
    }


def _confirmed(client: Client, change: str, wanted: dict[str, Any], more: dict[str, Any]) -> bool:
    """Ask on a terminal, with the number of jobs; otherwise --yes is needed."""
    found = client.change_jobs(change, filter=wanted, dry_run=True, **more)
    if not found.matched:
        print_note(_none(found))
        return False
    what = (
        f"{change} {count(found.matched, 'job')}" if change != "priority" else f"change {count(found.matched, 'job')}"
    )
    if not sys.stdin.isatty():
        raise Complaint(f"this would {what}", "add --yes to do it without a question")
    return click.confirm(f"{what}?", err=True)


def _none(answer: ChangeJobsAnswer) -> str:
    forbidden = f"; {count(answer.refused, 'job')} of others may not be changed by you" if answer.refused else ""
    return f"no jobs match{forbidden}"


def _report_named(jobs: tuple[str, ...], answer: ChangeJobsAnswer, done: tuple[str, str]) -> int:
    refused = {each.job for each in answer.refusals}
    for job in jobs if len(jobs) <= _LINES_MAX else ():
        if job_name(job) not in refused:
            print_line(f"job {job} {done[0]}")
    if len(jobs) > _LINES_MAX:
        print_line(_changed(answer, done))
    return _report_refused(answer)


def _changed(answer: ChangeJobsAnswer, done: tuple[str, str]) -> str:
    return f"{count(answer.changed, 'job')} {done[answer.changed != 1]}"


def _report_matching(answer: ChangeJobsAnswer, done: tuple[str, str]) -> int:
    if not answer.matched:
        print_note(_none(answer))
        return 0
    print_line(_changed(answer, done))
    return _report_refused(answer)


def _report_refused(answer: ChangeJobsAnswer) -> int:
    for each in answer.refusals[:_LINES_MAX]:
        named = "" if each.why.startswith(f"job {each.job} ") else f"job {each.job}: "
        print_note(f"error: {named}{each.why}" + (f" ({each.hint})" if each.hint else ""))
    left = answer.refused - min(len(answer.refusals), _LINES_MAX)
    if left > 0:
        print_note(f"and {count(left, 'more job was', 'more jobs were')} refused")
    return _code(answer.refusals[0].code) if answer.refusals else 0


def _code(code: str) -> int:
    return NOT_FOUND if code.startswith("no_such") else REFUSED
