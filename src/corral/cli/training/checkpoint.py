"""``corral checkpoint``: what is in a store of checkpoints: list, show, verify, prune, copy, export.

Reads and writes the store itself, with the rights of the user: no server is involved.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from corral.cli.errors import FAULT, NOT_FOUND, REFUSED, UNHEALTHY, Complaint
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing, clock, count, print_line, print_note, write_json
from corral.duration_text import span

if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.checkpoints.run_log import StoredCheckpoint
    from corral.checkpoints.run_store import RunStore
    from corral.checkpoints.storage import Storage

T = TypeVar("T")
_FOLLOW_S = 5.0
_STORES = "a store is a directory, or a URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https", "file", "memory")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_store = click.argument("store", envvar="CORRAL_CHECKPOINT_STORE")
_run = click.argument("run")
_step = click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="The checkpoint of step N. Default: the newest."
)


@click.group(cls=Noun)
def checkpoint() -> None:
    """Checkpoints of training runs: list, show, verify, prune, copy, export.

    STORE is a directory or a URL (s3://bucket/prefix); RUN is a run in it, for example job-17.
    """


LISTING: Listing[dict[str, Any]] = Listing(
    {
        "run": Field(lambda each: each["run"]),
        "step": Field(lambda each: str(each["step"]), right=True),
        "saved": Field(lambda each: clock(each["saved_ms"]), value=lambda each: each["saved_ms"]),
        "job": Field(lambda each: each["job"]),
        "attempt": Field(lambda each: str(each["attempt"] or ""), right=True),
        "world": Field(lambda each: str(each["world"]), right=True),
        "size": Field(lambda each: size_text(each["size"]), right=True),
        "new": Field(lambda each: size_text(each["new"]), right=True),
        "took": Field(lambda each: span(each["save_ms"]), right=True, value=lambda each: each["save_ms"]),
        "state": Field(lambda each: each["state"], shrinks=True),
    },
    usual=("run", "step", "saved", "job", "attempt", "world", "size", "new", "took", "state"),
)


@checkpoint.command("list")
@_store
@click.argument("run", required=False)
@click.option("--all", "with_removed", is_flag=True, help="Also those that were removed.")
@LISTING.options
def list_checkpoints(store: str, run: str | None, with_removed: bool, fields: str | None, as_json: bool) -> None:
    """List the checkpoints of a store, or of one run, the newest last."""
    found = [_opened(store, run)] if run else _runs(store)
    rows = [
        _row(each, saved)
        for each in found
        for _, saved in sorted(each.state().checkpoints.items())
        if with_removed or not saved.removed
    ]
    LISTING.write(rows, fields, as_json, empty=f"there is no checkpoint in {store}")


@checkpoint.command()
@_store
@_run
@_step
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show(store: str, run: str, step: int | None, as_json: bool) -> None:
    """Show one checkpoint: where it comes from, what it holds, and which jobs started from it."""
    opened = _opened(store, run)
    found = _found(opened, step)
    manifest = _checked(lambda: opened.manifest(found))
    record = {
        **_row(opened, found),
        "user": manifest.origin.user,
        "node": manifest.origin.host,
        "code": manifest.origin.code,
        "metrics": manifest.metrics,
        "tensors": len(manifest.tensors),
        "objects": sum(1 for piece in manifest.pieces if piece.place is None),
        "packs": len(manifest.packs),
        "used_by": [{"run": use.run, "job": use.job, "attempt": use.attempt, "at_ms": use.at_ms} for use in found.uses],
    }
    if as_json:
        write_json(record)
        return
    print_line(f"step {found.step} of run {run}, {record['state']}")
    origin = f"job {manifest.origin.job}, attempt {manifest.origin.attempt}" if manifest.origin.job else "no job"
    print_line(f"  saved by     {origin}, {manifest.origin.user or '?'} on {manifest.origin.host or '?'}")
    print_line(
        f"  saved at     {clock(found.at_ms)}; took {span(found.save_ms)}, stalled training {span(found.stall_ms)}"
    )
    print_line(f"  code         {manifest.origin.code or 'not in a Git repository'}")
    print_line(f"  world        {count(found.world, 'rank')}")
    print_line(f"  size         {size_text(found.size)}, of it new {size_text(found.new)}")
    print_line(f"  holds        {count(len(manifest.tensors), 'tensor')}, {count(record['objects'], 'object')}")
    for name, value in manifest.metrics.items():
        print_line(f"  {name:12} {value:g}")
    for use in found.uses:
        who = f"job {use.job}, attempt {use.attempt}" if use.job else "a process outside Corral"
        print_line(f"  used by      {who} (run {use.run}) at {clock(use.at_ms)}")


@checkpoint.command()
@_store
@_run
@_step
@click.option("--all", "every", is_flag=True, help="Verify all checkpoints of the run.")
def verify(store: str, run: str, step: int | None, every: bool) -> None:
    """Read a checkpoint and compare all checksums. A damaged one is marked, and is not used any more."""
    from corral.checkpoints.manifest import Damaged

    opened = _opened(store, run)
    chosen = opened.state().usable() if every else [_found(opened, step)]
    bad = 0
    for found in chosen:
        try:
            opened.verify(found)
        except Damaged as fault:
            bad += 1
            opened.note_damaged(found, str(fault))
            print_line(f"step {found.step}: damaged: {fault}")
        else:
            print_line(f"step {found.step}: complete, {size_text(found.size)}")
    if bad:
        raise Complaint(f"{count(bad, 'checkpoint')} damaged", "jobs resume from the one before", UNHEALTHY)


@checkpoint.command()
@_store
@_run
@click.option(
    "--keep-last", type=click.IntRange(min=1), metavar="N", default=3, show_default=True, help="Keep the newest N."
)
@click.option(
    "--keep-every", type=click.IntRange(min=0), metavar="N", default=0, help="Keep steps that are multiples of N."
)
@click.option("--keep-best", type=click.IntRange(min=0), metavar="N", default=0, help="Keep the best N by --metric.")
@click.option("--metric", metavar="NAME", default="", help="Metric of --keep-best, for example loss.")
@click.option("--highest", is_flag=True, help="The highest value is the best. Default: the lowest.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
def prune(store: str, run: str, dry_run: bool, **rules: Any) -> None:
    """Remove old checkpoints, and what interrupted saves have left."""
    from corral.checkpoints.keep_rules import KeepRules, to_remove

    opened = _opened(store, run)
    try:
        chosen = KeepRules(
            rules["keep_last"], rules["keep_every"], rules["keep_best"], rules["metric"], rules["highest"]
        )
    except ValueError as fault:
        raise Complaint(str(fault), "give --keep-best and --metric together") from None
    state = opened.state()
    doomed = to_remove(state, chosen)
    for number in doomed:
        print_line(f"step {state.checkpoints[number].step}: {'would be removed' if dry_run else 'removed'}")
    if dry_run:
        return
    opened.remove(doomed)
    left = opened.clean(state.writer.number if state.writer else 0)
    if left:
        print_note(f"{count(left, 'file')} of interrupted saves removed")


@checkpoint.command("copy")
@_store
@_run
@click.argument("target")
@_step
@click.option("--as", "name", metavar="RUN", default=None, help="Name of the run in TARGET. Default: the same.")
@click.option("--new", "only_new", is_flag=True, help="Copy all checkpoints that TARGET does not have yet.")
@click.option("--follow", "-f", is_flag=True, help="As --new, and continue with every checkpoint that is saved.")
def copy_checkpoint(
    store: str, run: str, target: str, step: int | None, name: str | None, only_new: bool, follow: bool
) -> None:
    """Copy a checkpoint to another store; every checksum is compared.

    With --follow it is a second tier: the job saves to a fast disk, and this process copies to durable storage. RUN may
    be a pattern then, such as '*' for all runs: the service of a node, for jobs that have ended too.
    """
    from corral.checkpoints.copying import copy

    if "*" in run:
        if name or step is not None or not (only_new or follow):
            raise Complaint("a pattern names several runs", "use it with --new or --follow, without --as and --step")
        _copy_all(store, run, target, follow)
        return
    if only_new or follow:
        source, copies = _opened(store, run), _store_of(target, name or run)
        _repeat(lambda: _copy_new(source, copies), follow)
        return
    opened = _opened(store, run)
    found = _found(opened, step)
    copied = _checked(lambda: copy(opened, found, _store_of(target, name or run)))
    print_line(f"step {copied.step} copied to {target}, {size_text(copied.new)} of {size_text(copied.size)} new")


def _copy_new(source: RunStore, target: RunStore, about: str = "") -> None:
    from corral.checkpoints.copying import copy_new

    for copied in _checked(lambda: copy_new(source, target)):
        print_line(f"{about}step {copied.step} copied, {size_text(copied.new)} of {size_text(copied.size)} new")


def _copy_all(store: str, pattern: str, target: str, follow: bool) -> None:
    """Copy every run whose name matches, also those that begin later. With ``follow`` an error of one run is printed
    once, and the others are copied."""
    from fnmatch import fnmatchcase

    said: dict[str, str] = {}

    def once() -> None:
        for source in _runs(store):
            if fnmatchcase(source.run, pattern):
                try:
                    _copy_new(source, _store_of(target, source.run), f"{source.run}: ")
                except Complaint as complaint:
                    if not follow:
                        raise
                    if said.get(source.run) != str(complaint):
                        said[source.run] = str(complaint)
                        print_note(f"{source.run} is not copied: {complaint}")
                else:
                    said.pop(source.run, None)

    _repeat(once, follow)


def _repeat(act: Callable[[], None], follow: bool) -> None:
    import time

    act()
    while follow:
        time.sleep(_FOLLOW_S)
        act()


@checkpoint.command()
@_store
@_run
@click.argument("file", type=click.Path(dir_okay=False))
@_step
@click.option(
    "--only", metavar="NAME", default="", help="Only the part of the state with this name, for example model."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "torch"]),
    default=None,
    help="Format of the file. Default: by its name; torch for .pt, .pth and .bin.",
)
@click.option("--python", metavar="PATH", default="", help="For torch: a Python that has torch installed.")
def export(store: str, run: str, file: str, step: int | None, only: str, form: str | None, python: str) -> None:
    """Write a checkpoint to one file for other programs: safetensors, or as torch.save does."""
    from corral.checkpoints import copying

    chosen = form or ("torch" if Path(file).suffix in {".pt", ".pth", ".bin"} else "safetensors")
    opened = _opened(store, run)
    found = _found(opened, step)
    if chosen == "torch" and python:
        _export_with(python, [store, run, str(found.number), os.path.abspath(file), only])
        return
    write = copying.export_torch if chosen == "torch" else copying.export_safetensors
    try:
        left = _checked(lambda: write(opened, found, file, only))
    except ImportError:
        raise Complaint(
            "torch is not installed beside Corral", "give --python with a Python that has it, or --format safetensors"
        ) from None
    except ValueError as fault:
        raise Complaint(str(fault), "see the names with: corral checkpoint show --json") from None
    except OSError as fault:
        raise Complaint(f"{file} cannot be written: {fault.strerror}", "name another file") from None
    print_line(f"step {found.step} written to {file}")
    if left:
        print_note(
            f"not in the file: {count(len(left), 'object')} ({', '.join(left[:3])}{', …' if len(left) > 3 else ''})"
        )


_PROGRAM = """
import sys
from corral.checkpoints import RunStore, open_storage
from corral.checkpoints.copying import export_torch
store, run, number, file, only = sys.argv[1:]
opened = RunStore(open_storage(store), run)
left = export_torch(opened, opened.state().checkpoints[int(number)], file, only)
print("written to", file, *(["without", *left] if left else []))
"""


def _export_with(python: str, arguments: list[str]) -> None:
    source = str(Path(__file__).resolve().parents[3])
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))}
    try:
        ended = subprocess.run([python, "-c", _PROGRAM, *arguments], env=env, check=False, stdout=sys.stdout)
    except OSError as fault:
        raise Complaint(f"{python} cannot be run: {fault.strerror}", "name a Python that has torch") from None
    if ended.returncode:
        raise Complaint(f"{python} could not write the file", "its error is above", FAULT)


def size_text(size: int) -> str:
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def _row(opened: RunStore, saved: StoredCheckpoint) -> dict[str, Any]:
    writer = opened.state().writers.get(saved.writer)
    state = (
        f"removed: {saved.removed}" if saved.removed else f"damaged: {saved.damaged}" if saved.damaged else "complete"
    )
    return {
        "run": opened.run,
        "step": saved.step,
        "saved_ms": saved.at_ms,
        "job": writer.origin.job if writer else "",
        "attempt": writer.origin.attempt if writer else 0,
        "world": saved.world,
        "size": saved.size,
        "new": saved.new,
        "save_ms": saved.save_ms,
        "stall_ms": saved.stall_ms,
        "state": state,
    }


def _store_of(store: str, run: str) -> RunStore:
    from corral.checkpoints import RunStore

    try:
        return RunStore(_storage(store), run)
    except ValueError as fault:
        raise Complaint(str(fault), f"see the runs with: corral checkpoint list {store}") from None


def _opened(store: str, run: str) -> RunStore:
    _check_directory(store)
    opened = _store_of(store, run)
    if not _checked(opened.state).head:
        raise Complaint(
            f"there is no run {run!r} in {store!r}", f"see the runs with: corral checkpoint list {store}", NOT_FOUND
        )
    return opened


def _check_directory(store: str) -> None:
    if "://" not in store and not Path(store).is_dir():
        raise Complaint(f"there is no directory {store}", _STORES, NOT_FOUND)


def _runs(store: str) -> list[RunStore]:
    from corral.checkpoints.run_store import runs_in

    _check_directory(store)
    return _checked(lambda: list(runs_in(_storage(store))))


def _storage(store: str) -> Storage:
    """The store of this name. Raises ``Complaint`` for a kind of URL that there is not."""
    from corral.checkpoints import open_storage

    scheme, has_scheme, _ = store.partition("://")
    if has_scheme and scheme.lower() not in _SCHEMES:
        raise Complaint(f"there is no kind of store {scheme}://", _STORES)
    return open_storage(store)


def _found(opened: RunStore, step: int | None) -> StoredCheckpoint:
    state = opened.state()
    if step is not None and (found := state.at_step(step)):
        return found
    if step is None and state.usable():
        return state.usable()[0]
    what = f"run {opened.run} has no checkpoint" + ("" if step is None else f" of step {step}")
    raise Complaint(what, "see: corral checkpoint list", NOT_FOUND)


def _checked(act: Callable[[], T]) -> T:
    """What the store cannot do, as a message for users."""
    from corral.checkpoints.manifest import Damaged
    from corral.checkpoints.run_log import Fenced

    try:
        return act()
    except Damaged as fault:
        raise Complaint(
            f"the checkpoint is damaged: {fault}", "see: corral checkpoint verify --all", UNHEALTHY
        ) from None
    except Fenced as fault:
        raise Complaint(str(fault), "copy to another run: --as NAME", REFUSED) from None
    except PermissionError as fault:
        raise Complaint(f"{fault.filename} cannot be read: {fault.strerror}", "run it as the owner") from None
