"""``corral batch``: batching queues, their items and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import BAD_INPUT, Complaint, nearest
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing, print_line, print_note, style, write_json
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.batch import BatchQueueBody, BatchQueueView

BATCHES: Listing[BatchQueueView] = Listing(
    {
        "name": Field(lambda each: each.name, title="BATCHING QUEUE"),
        "queue": Field(lambda each: each.queue),
        "waiting": Field(lambda each: str(each.stats.waiting), right=True, value=lambda each: each.stats.waiting),
        "running": Field(lambda each: str(each.stats.running), right=True, value=lambda each: each.stats.running),
        "workers": Field(lambda each: str(each.stats.workers), right=True, value=lambda each: each.stats.workers),
        "done": Field(lambda each: str(each.stats.done), right=True, value=lambda each: each.stats.done),
        "failed": Field(lambda each: str(each.stats.failed), right=True, value=lambda each: each.stats.failed),
        "size": Field(
            lambda each: f"{each.stats.mean_size:.1f}",
            right=True,
            value=lambda each: each.stats.mean_size,
        ),
        "p95": Field(
            lambda each: f"{each.stats.latency_p95_ms:.0f} ms", right=True, value=lambda each: each.stats.latency_p95_ms
        ),
        "problem": Field(lambda each: "draining" if each.is_draining else each.problem),
    },
    ("name", "queue", "waiting", "running", "workers", "done", "failed", "size", "p95", "problem"),
)
_FILE_BYTES_MAX = 1 << 20


@click.group(cls=Noun)
def batch() -> None:
    """Batching queues: short GPU requests, grouped by model and sized by VRAM."""


@batch.command("list")
@BATCHES.options
def list_queues(fields: str | None, as_json: bool) -> None:
    """List the batching queues."""
    with connected() as client:
        found = client.batch_queues().batch_queues
    BATCHES.write(found, fields, as_json, empty="no batching queues that you may see")


@batch.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--name", metavar="NAME", help="Its name; default: that in the file, or the name of the file.")
def create(file: str, name: str | None) -> None:
    """Create a batching queue from a YAML file, or change its settings.

    For example: corral batch create embed.yaml
    """
    stated, body = _read(file)
    with connected() as client:
        done = client.set_batch_queue(name or stated, body)
    print_line(f"batching queue {done.name} is set")
    print_note(f"submit items with: corral batch submit {done.name} items.jsonl")


def _read(file: str) -> tuple[str, BatchQueueBody]:
    from pathlib import Path

    import msgspec

    from corral.wire.api.batch import BatchQueueBody
    from corral.wire.document.yaml import read_yaml

    try:
        marked = read_yaml(Path(file).read_text(encoding="utf-8"), file, _FILE_BYTES_MAX)
    except OSError as wrong:
        raise Complaint(f"cannot read {file}: {wrong.strerror}", "check the name and the folder", BAD_INPUT) from None
    except UnicodeDecodeError:
        raise Complaint(f"{file} is not text", "name a YAML file", BAD_INPUT) from None
    if marked and marked[0].faults:
        raise Complaint(str(marked[0].faults[0]), "check indentation, quotes and colons", BAD_INPUT)
    document = marked[0].value if marked else None
    if not isinstance(document, dict):
        raise Complaint(f"{file} has no settings", "see: docs/batching.md", exit_code=BAD_INPUT)
    stated = str(document.pop("name", Path(file).stem))
    job = document.setdefault("job", {})
    if isinstance(job, dict):  # relative to the file; where it is, unless it says another
        job["directory"] = str((Path(file).resolve().parent / str(job.get("directory", "."))).resolve())
    for key in document:
        if key not in BatchQueueBody.__struct_fields__:
            raise Complaint(f"{file}: there is no key {key!r} here", _key_hint(str(key)), BAD_INPUT)
    try:
        return stated, msgspec.convert(document, BatchQueueBody, strict=False)
    except msgspec.ValidationError as wrong:
        raise Complaint(f"{file}: {wrong}", "see: docs/batching.md", exit_code=BAD_INPUT) from None


def _key_hint(key: str) -> str:
    from corral.wire.api.batch import BatchQueueBody
    from corral.wire.job.keys import GANG_KEYS, JOB_KEYS

    of_job = {each.name for each in (*GANG_KEYS.keys, *JOB_KEYS.keys)}
    return (
        f"keys of the workers stand below job: {key}"
        if key in of_job
        else nearest(key, BatchQueueBody.__struct_fields__)
    )


@batch.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show(name: str, as_json: bool) -> None:
    """Show the settings of a batching queue, and its worker jobs."""
    import msgspec

    with connected() as client:
        found = client.batch_queue(name)
    if as_json:
        write_json(found)
        return
    _print({"batching queue": found.name, "owner": found.owner, "workers": ", ".join(found.jobs) or "none"})
    _print({key: str(value) for key, value in msgspec.to_builtins(found.settings).items() if value not in ("", {})})
    if found.problem:
        _print({"problem": found.problem})


@batch.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def stats(name: str, as_json: bool) -> None:
    """Show what happened in a batching queue: waits, batches, refusals, busy time by user."""
    with connected() as client:
        found = client.batch_queue(name).stats
    if as_json:
        write_json(found)
        return
    refused = ", ".join(f"{many} {why}" for why, many in found.refused.items())
    busy = ", ".join(f"{user} {ms / 1000:.1f} s" for user, ms in found.busy_ms_by_user.items())
    _print(
        {
            "items": f"{found.waiting} waiting, {found.running} running, {found.done} done, {found.failed} failed",
            "refused": refused or "none",
            "batches": f"{found.batches}, {found.mean_size:.1f} items on average ({found.fill:.0%} full)",
            "wait": f"p50 {found.wait_p50_ms:.1f} ms, p95 {found.wait_p95_ms:.1f} ms",
            "latency": f"p95 {found.latency_p95_ms:.1f} ms",
            "service": f"{found.service_mean_ms:.1f} ms per batch",
            "VRAM": f"{found.vram_predicted_mib} MiB predicted, {found.vram_measured_mib} MiB measured (last batch)",
            "workers": f"{found.workers}, busy for {found.busy_ms / 1000:.1f} s",
            "by user": busy or "none",
        }
    )


def _print(lines: dict[str, str]) -> None:
    for title, text in lines.items():
        print_line(f"{style(title, dim=True)}{' ' * max(1, 17 - len(title))}{text}")


@batch.command()
@click.argument("name")
def flush(name: str) -> None:
    """Dispatch the items that wait now, without waiting for fuller batches."""
    with connected() as client:
        client.flush_batch_queue(name)
    print_line(f"{name} is flushed")


@batch.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Accept items again.")
def drain(name: str, undo: bool) -> None:
    """Accept no more items; those that wait are finished."""
    with connected() as client:
        client.drain_batch_queue(name, not undo)
    print_line(f"{name} accepts items again" if undo else f"{name} is draining")


@batch.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete a batching queue with its items and results; its workers are cancelled."""
    with connected() as client:
        client.delete_batch_queue(name)
    print_line(f"batching queue {name} is deleted")


@batch.command()
@click.argument("name")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--out", metavar="FILE", help="Write results here, one line of JSON per item; a second run continues it.")
def submit(name: str, file: str, out: str | None) -> int:
    """Run the items of a file, one line of JSON each, and write their results in the same order.

    For example: corral batch submit embed items.jsonl --out results.jsonl
    """
    from corral.cli.batch.item_files import ItemFile

    items = ItemFile(file, out)
    failed = 0
    with connected(patience_s=120.0) as client, items.output() as written:
        for view in client.map_items(name, items.left(), items.ids()):
            failed += view.state != "done"
            outcome: dict[str, Any] = {"id": view.id}
            outcome |= {"result": view.result} if view.state == "done" else {"error": view.error}
            written.add(outcome)
    print_note(f"{written.count} items, {failed} of them failed" + (f"; results in {out}" if out else ""))
    return 1 if failed else 0
