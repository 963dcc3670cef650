"""``corral queue``: queues, their settings and their usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.amount_text import quantity, thousandths
from corral.cli.amounts import amounts_text, gpus_text, parse_amounts
from corral.cli.errors import Complaint
from corral.cli.lazy import Noun
from corral.cli.option_types import Span, span_ms
from corral.cli.render import (
    Field,
    Listing,
    ago,
    clock,
    gpu_hours,
    hours_field,
    print_line,
    print_note,
    style,
    write_json,
)
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.cluster import QueueBody, QueuePreview, QueueView
    from corral.wire.api.live import LinePlace


def _indented(queue: QueueView) -> str:
    return "  " * queue.name.count("/") + (queue.name.rpartition("/")[2] or "(all)")


QUEUES: Listing[QueueView] = Listing(
    {
        "name": Field(_indented, title="QUEUE", value=lambda queue: queue.name),
        "used": Field(lambda queue: gpus_text(queue.used), title="GPUS", right=True),
        "guarantee": Field(lambda queue: gpus_text(queue.guarantee), title="GUARANTEED", right=True),
        "limit": Field(lambda queue: gpus_text(queue.limit), right=True),
        "borrowed": Field(lambda queue: gpus_text(queue.borrowed), right=True),
        "gpus_waiting": Field(
            lambda queue: thousandths(queue.gpu_milli_pending),
            title="WAITING FOR",
            right=True,
            value=lambda queue: queue.gpu_milli_pending / 1000,
        ),
        "gangs_running": Field(lambda queue: str(queue.gangs_running), title="RUNNING", right=True),
        "gangs_waiting": Field(lambda queue: str(queue.gangs_waiting), title="WAITING", right=True),
        "jobs": Field(lambda queue: str(queue.jobs), right=True),
        "gpu_hours": hours_field(lambda queue: queue.used_gpu_ms, "GPU HOURS"),
        "gpu_hours_lost": hours_field(lambda queue: queue.loss_suffered_gpu_ms, "LOST"),
        "gpu_hours_caused": hours_field(lambda queue: queue.loss_caused_gpu_ms, "CAUSED"),
        "weight": Field(lambda queue: str(queue.terms.weight), right=True, value=lambda queue: queue.terms.weight),
        "gpu_milli_pending": Field(lambda queue: thousandths(queue.gpu_milli_pending), right=True, hidden=True),
        "used_gpu_ms": Field(lambda queue: gpu_hours(queue.used_gpu_ms), right=True, hidden=True),
        "loss_suffered_gpu_ms": Field(lambda queue: gpu_hours(queue.loss_suffered_gpu_ms), right=True, hidden=True),
        "loss_caused_gpu_ms": Field(lambda queue: gpu_hours(queue.loss_caused_gpu_ms), right=True, hidden=True),
    },
    ("name", "used", "guarantee", "limit", "borrowed", "gpus_waiting", "gangs_running", "gangs_waiting"),
)


LINE: Listing[LinePlace] = Listing(
    {
        "place": Field(lambda gang: str(gang.place), title="#", right=True),
        "gang": Field(lambda gang: gang.gang),
        "name": Field(lambda gang: gang.name or "-", shrinks=True),
        "queue": Field(lambda gang: gang.queue, shrinks=True),
        "user": Field(lambda gang: gang.user),
        "priority": Field(lambda gang: str(gang.priority), right=True),
        "gpus": Field(lambda gang: str(gang.gpus), right=True),
        "waiting_since_ms": Field(lambda gang: ago(gang.waiting_since_ms), title="WAITS", right=True),
        "starts_ms": Field(lambda gang: clock(gang.starts_ms) if gang.starts_ms else "", title="STARTS"),
        "reason": Field(lambda gang: gang.reason, shrinks=True),
    },
    ("place", "gang", "name", "queue", "user", "priority", "gpus", "waiting_since_ms", "starts_ms", "reason"),
)


@click.group(cls=Noun)
def queue() -> None:
    """Queues: shares of the cluster in a tree."""


@queue.command("list")
@QUEUES.options
def list_queues(fields: str | None, as_json: bool) -> None:
    """List the queues: GPUs in use, guaranteed, borrowed and waited for."""
    with connected() as client:
        found = client.queues().queues
    QUEUES.write(found, fields, as_json, empty="no queues that you may see")


@queue.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show(name: str, as_json: bool) -> None:
    """Show a queue: its settings and its usage."""
    with connected() as client:
        found = client.queue(name)
    if as_json:
        write_json(found)
        return
    lines = {
        "queue": found.name,
        "in use": amounts_text(found.used) or "nothing",
        "guaranteed": amounts_text(found.guarantee) or "nothing",
        "limit": amounts_text(found.limit) or "no limit",
        "lends": amounts_text(found.terms.lend) or "all of it",
        "borrowed": amounts_text(found.borrowed),
        "per user": amounts_text(found.terms.user_limit),
        "weight": str(found.terms.weight),
        "gangs": f"{found.gangs_running} running, {found.gangs_waiting} waiting "
        f"for {thousandths(found.gpu_milli_pending)} GPUs",
        "used": f"{gpu_hours(found.used_gpu_ms)} GPU hours",
        "lost": f"to preemption: {gpu_hours(found.loss_suffered_gpu_ms)} GPU hours; "
        f"caused others to lose: {gpu_hours(found.loss_caused_gpu_ms)}",
        "children": ", ".join(found.children),
    }
    for title, text in lines.items():
        if text:
            print_line(f"{style(title, dim=True)}{' ' * (12 - len(title))}{text}")


@queue.command("line")
@click.argument("name", required=False)
@click.option(
    "--limit", type=click.IntRange(1, 1000), metavar="N", default=50, show_default=True, help="Show at most N gangs."
)
@LINE.options
def show_line(name: str | None, limit: int, fields: str | None, as_json: bool) -> None:
    """List waiting gangs in the order in which they are served, with the reason why each waits.

    With NAME only those of that queue and its children; they keep their places among all.
    """
    with connected() as client:
        found = client.line(queue=name, limit=limit)
        if name and not found.gangs:
            client.queue(name)  # raises if there is none
    LINE.write(found.gangs, fields, as_json, empty="nothing waits to be served")
    if len(found.gangs) == limit and not as_json:
        print_note(f"the first {limit} of {found.waiting}; --limit shows more", dim=True)


@queue.command("set")
@click.argument("name")
@click.option("--guarantee", metavar="gpus=8,...", default=None, help="Always available to the queue.")
@click.option(
    "--limit", metavar="gpus=16,...", default=None, help="Maximum that the queue may use, including what it borrows."
)
@click.option(
    "--lend", metavar="gpus=4,...", default=None, help="Maximum of its unused guarantee that other queues may borrow."
)
@click.option("--user-limit", metavar="gpus=4,...", default=None, help="Maximum that one user may use.")
@click.option(
    "--weight",
    type=click.IntRange(min=1),
    metavar="N",
    default=None,
    help="Share of free capacity, relative to its sibling queues.",
)
@click.option(
    "--max-jobs", type=click.IntRange(min=0), metavar="N", default=None, help="Maximum number of unfinished jobs."
)
@click.option(
    "--max-jobs-per-user",
    type=click.IntRange(min=0),
    metavar="N",
    default=None,
    help="Maximum number of unfinished jobs of one user.",
)
@click.option("--priority-ceiling", type=int, metavar="N", default=None, help="Highest priority of its jobs.")
@click.option("--grace-max", type=Span(), metavar="TIME", default=None, help="Longest grace period of its jobs.")
@click.option(
    "--preemptible/--not-preemptible", default=None, help="Whether its jobs may be preempted, if they do not state it."
)
@click.option(
    "--time-share",
    type=click.IntRange(min=0),
    metavar="N",
    default=None,
    help="Shortest turn before a job yields to an equal, in multiples of the cost of a switch; 0: never yields.",
)
@click.option("--budget", metavar="GPUHOURS/TIME", default=None, help="GPU-hours per window, for example 1000h/30d.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show which gangs would have to leave, and start.")
def set_queue(name: str, dry_run: bool, **given: Any) -> None:
    """Create a queue, or change the given settings of one. An empty amount removes a setting."""
    from corral.client.errors import NotFound
    from corral.wire.api.cluster import QueueBody

    with connected() as client:
        try:
            terms, verb = client.queue(name).terms, "changed"
        except NotFound:
            terms, verb = QueueBody(), "created"
        new = _changed(terms, given)
        if dry_run:
            _print_preview(name, client.preview_queue(name, new))
            return
        client.set_queue(name, new)
        print_line(f"queue {name} {verb}")
        _warn_if_more(client, new, given)


def _print_preview(name: str, preview: QueuePreview) -> None:
    for each in preview.reclaimed:
        who = f"{each.gang} of {each.user} in {each.queue}" if each.gang else "a gang that you may not see"
        print_line(f"would have to leave: {who}, for {each.beneficiary or 'another job'}")
    for gang in preview.starts:
        print_line(f"would start: {gang}")
    for gang in preview.kept_waiting:
        print_line(f"would no longer start: {gang}")
    if not (preview.reclaimed or preview.starts or preview.kept_waiting):
        print_line("nothing would start or leave now")
    print_note(f"queue {name} was not changed", dim=True)


def _warn_if_more(client: Client, terms: QueueBody, given: dict[str, Any]) -> None:
    """Point out amounts that are more than the whole cluster has: accepted, since nodes may come."""
    stated = [field for field in ("guarantee", "limit", "lend", "user_limit") if given[field]]
    if not stated:
        return
    from corral.client.errors import ClientError

    try:
        nodes = client.nodes().nodes
    except ClientError:
        return  # the queue is set; this user may not see nodes
    total: dict[str, int] = {}
    for node in nodes:
        for name, amount in (*node.amounts.items(), ("gpu_milli", len(node.gpus) * 1000)):
            total[name] = total.get(name, 0) + amount
    for field in stated:
        for name, amount in getattr(terms, field).items():
            if amount > total.get(name, 0):
                has = quantity(name, total.get(name, 0))
                option = field.replace("_", "-")
                print_note(f"warning: --{option} is {quantity(name, amount)}; the whole cluster has {has}")


def _changed(terms: QueueBody, given: dict[str, Any]) -> QueueBody:
    from msgspec.structs import replace

    stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in ("guarantee", "limit", "lend", "user_limit"):
        if name in stated:
            stated[name] = parse_amounts(stated[name], f"--{name.replace('_', '-')}")
    if "grace_max" in stated:
        stated["grace_max_ms"] = stated.pop("grace_max")
    if "budget" in stated:
        stated["budget"] = _budget(stated["budget"])
    return replace(terms, **stated)


def _budget(text: str) -> Any:
    from corral.wire.api.cluster import BudgetBody

    if not text:
        return None
    hours, slash, window = text.partition("/")
    if not slash or not hours.removesuffix("h").isdecimal():
        raise Complaint(f"--budget cannot be {text!r}", "write it like 1000h/30d: GPU-hours in a window")
    return BudgetBody(
        gpu_ms=int(hours.removesuffix("h")) * 3_600_000,
        window_ms=span_ms(window, "--budget"),
    )


@queue.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a queue that has no jobs and no children."""
    with connected() as client:
        client.remove_queue(name)
    print_line(f"queue {name} removed")
