"""``corral db``: the journal in a data folder: is it whole, how large, made anew, archived. Works without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.complaint import FAULT, UNHEALTHY, Complaint
from corral.cli.lazy import Noun
from corral.cli.render import clock, count, say, style, tell, write_json
from corral.cli.serve.place import data_folder, data_option

if TYPE_CHECKING:
    from corral.store.sqlite.journal import SqliteJournal


@click.group(cls=Noun)
def db() -> None:
    """The journal of a server: verify, rebuild, archive."""


@db.command()
@data_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def verify(data: str | None, as_json: bool) -> int:
    """Check every record, every link of the chain, archives, images and what is looked up. May run beside a server."""
    from corral.store.verify import verify as findings_of

    folder = data_folder(data)
    with _told(folder):
        findings = findings_of(folder)
    if as_json:
        write_json(findings)
    elif not findings:
        tell(f"the journal in {folder} is whole")
    for finding in findings if not as_json else ():
        at = f" at record {finding.seq}" if finding.seq is not None else ""
        tell(f"{style(finding.about, fg='red')}{at}: {finding.text}")
    if findings and not as_json:
        wrong = count(len(findings), "thing is wrong", "things are wrong")
        say(f"{wrong}; keep a copy of {folder} before anything else")
    return UNHEALTHY if findings else 0


@db.command()
@data_option
def rebuild(data: str | None) -> None:
    """Make what is looked up (jobs, runs, usage) anew from the journal. The server must not run."""
    folder = data_folder(data)
    with _opened(folder) as journal:
        journal.rebuild()
        tell(f"made anew from {count(journal.head.seq, 'record')}")


@db.command()
@data_option
@click.option("--upto", type=click.IntRange(min=1), metavar="SEQ", default=None, help="Else as far as is possible.")
@click.option("--to", "target", metavar="FILE", default=None, help="Otherwise a file in the data folder.")
def archive(data: str | None, upto: int | None, target: str | None) -> None:
    """Move old records into a file, without breaking the chain. The server must not run."""
    from corral.store.archive import ArchiveRefused
    from corral.store.images import ImageFolder

    folder = data_folder(data)
    with _opened(folder) as journal:
        last = upto or min(ImageFolder(folder / "images").seqs(), default=0)
        if not last:
            hint = "a server writes an image now and then, and what is older can be archived"
            raise Complaint("there is nothing to archive yet", hint)
        try:
            path = journal.archive(last, Path(target).absolute() if target else None)
        except ArchiveRefused as error:
            raise Complaint(str(error).rstrip("."), "corral db info tells what there is") from None
    tell(f"records up to {last} are in {path}")


@db.command()
@data_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def info(data: str | None, as_json: bool) -> None:
    """Say what there is: records, images, archives, sizes."""
    from corral.store.sqlite.reader import SqliteReader

    folder = data_folder(data)
    with _told(folder):
        reader = SqliteReader(folder)
        head, anchor, images = reader.durable_head(), reader.anchor(), reader.images.seqs()
        last = reader.read(head.seq - 1, 1) if head.seq else []
        reader.close()
    size = sum(path.stat().st_size for path in folder.glob("journal.db*"))
    if as_json:
        found = {"records": head.seq, "archived": anchor.seq, "hash": head.hash.hex(), "images": images, "bytes": size}
        write_json(found | {"epoch": last[0].epoch if last else 0})
        return
    lines = {
        "folder": str(folder),
        "records": f"{head.seq:,}" + (f", the last at {clock(last[0].at_ms)}" if last else ""),
        "archived": f"up to {anchor.seq:,}" if anchor.seq else "none",
        "epoch": str(last[0].epoch) if last else "0",
        "images": ", ".join(map(str, images)) or "none",
        "size": f"{size / (1 << 20):.1f} MiB",
        "hash": head.hash.hex(),
    }
    for title, text in lines.items():
        tell(f"{style(title, dim=True)}{' ' * (10 - len(title))}{text}")


@contextmanager
def _opened(folder: Path) -> Iterator[SqliteJournal]:
    from corral.store.sqlite.journal import SqliteJournal

    with _told(folder):
        if not (folder / "journal.db").exists():
            raise Complaint(f"there is no journal in {folder}", "--data names the data folder of a server")
        journal = SqliteJournal(folder)
        try:
            yield journal
        finally:
            journal.close()


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    from corral.store.journal import JournalBroken, JournalBusy, JournalTooNew, JournalUnusable

    try:
        yield
    except JournalBusy as error:
        raise Complaint(str(error).rstrip("."), "corral down stops the server", exit_code=FAULT) from None
    except (JournalUnusable, JournalTooNew) as error:
        raise Complaint(str(error).rstrip("."), "--data names the data folder of a server") from None
    except JournalBroken as error:
        hint = f"corral db verify --data {folder} tells all that is wrong"
        raise Complaint(str(error).rstrip("."), hint, exit_code=UNHEALTHY) from None
