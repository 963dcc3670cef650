"""``corral db``: the journal of a server: is it whole, how large, made anew, archived, copied, backed up, restored.

Works on a data folder or on a database, and without a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from corral.cli.complaint import FAULT, UNHEALTHY, Complaint
from corral.cli.lazy import Noun
from corral.cli.render import clock, count, say, style, tell, write_json
from corral.cli.serve.place import data_folder, data_option, database_option

if TYPE_CHECKING:
    from corral.store.moving import JournalPlace
    from corral.store.postgres import PostgresJournal
    from corral.store.sql.findings import Finding
    from corral.store.sqlite.journal import SqliteJournal

F = TypeVar("F", bound=Callable[..., Any])


def where(command: F) -> F:
    """The options that say which journal."""
    return data_option(database_option(command))


@click.group(cls=Noun)
def db() -> None:
    """The journal of a server: verify, back up, restore, copy, rebuild, archive."""


@db.command()
@where
@click.option("--heads", metavar="FILE", default="", help="Signed heads kept elsewhere, to be found in the journal.")
@click.option("--public-key", metavar="HEX", default="", help="The only key that may have signed them.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def verify(data: str | None, database: str | None, heads: str, public_key: str, as_json: bool) -> int:
    """Check every record, every link of the chain, archives, images and what is looked up. May run beside a server."""
    from corral.store.address import verify as findings_of

    with _told():
        place = _place(data, database)
        findings = findings_of(place)
        if heads:
            findings += _missing_heads(place, heads, public_key)
    if as_json:
        write_json(findings)
    elif not findings:
        tell(f"the journal in {_shown(place)} is whole")
    for finding in findings if not as_json else ():
        at = f" at record {finding.seq}" if finding.seq is not None else ""
        tell(f"{style(finding.about, fg='red')}{at}: {finding.text}")
    if findings and not as_json:
        wrong = count(len(findings), "thing is wrong", "things are wrong")
        say(f"{wrong}; keep a copy of {_shown(place)} before anything else")
    return UNHEALTHY if findings else 0


def _missing_heads(place: JournalPlace, file: str, public_key: str) -> list[Finding]:
    """Heads that were attested and that the journal does not have."""
    from corral.store.attest import BadAttestation, read_lines
    from corral.store.moving import missing_heads
    from corral.store.sql.findings import Finding

    try:
        with Path(file).open("rb") as lines:
            attested = [each.head for each in read_lines(lines, public_key)]
    except OSError as error:
        raise Complaint(f"cannot read {file}: {(error.strerror or '').lower()}", "--heads names their file") from None
    except BadAttestation as error:
        raise Complaint(f"{file}: {error}", "look for another copy of it", UNHEALTHY) from None
    text = "record {} was attested with another hash than it has, or is not there: the record was changed or put back"
    return [Finding("attested", text.format(head.seq), head.seq) for head in missing_heads(place, attested)]


@db.command()
@where
def rebuild(data: str | None, database: str | None) -> None:
    """Make what is looked up (jobs, runs, usage) anew from the journal. The server must not run."""
    with _opened(data, database) as journal:
        journal.rebuild()
        tell(f"made anew from {count(journal.head.seq, 'record')}")


@db.command()
@where
@click.option("--upto", type=click.IntRange(min=1), metavar="SEQ", default=None, help="Else as far as is possible.")
@click.option("--to", "target", metavar="FILE", default=None, help="Otherwise a file in the data folder.")
@click.option("--no-vacuum", is_flag=True, help="Leave the database file as large as it is.")
def archive(data: str | None, database: str | None, upto: int | None, target: str | None, no_vacuum: bool) -> None:
    """Move old records into a file, without breaking the chain, and give back their room. The server must not run.

    The database file of an earlier version is written again as a whole, which needs free disk for a copy of what is
    left. PostgreSQL uses the room again by itself.
    """
    from corral.store.archive import ArchiveRefused

    with _opened(data, database) as journal:
        last = upto or min(journal.image_seqs(), default=0)
        if not last:
            hint = "a server writes an image now and then, and what is older can be archived"
            raise Complaint("there is nothing to archive yet", hint)
        try:
            path = journal.archive(last, Path(target).absolute() if target else None)
        except ArchiveRefused as error:
            raise Complaint(str(error).rstrip("."), "corral db info tells what there is") from None
        tell(f"records up to {last} are in {path}")
        if not no_vacuum:
            _shrink(journal)


@db.command()
@where
def vacuum(data: str | None, database: str | None) -> None:
    """Give the room that archived records have left back to the disk. The server must not run."""
    with _opened(data, database) as journal:
        _shrink(journal)


def _shrink(journal: SqliteJournal | PostgresJournal) -> None:
    from corral.store.sqlite.journal import SqliteJournal
    from corral.store.sqlite.space import NoRoom

    if not isinstance(journal, SqliteJournal):
        tell("PostgreSQL uses the room of archived records again by itself; VACUUM FULL records gives it to the disk")
        return
    try:
        tell(f"the database is {journal.shrink() / (1 << 20):.1f} MiB smaller")
    except NoRoom as error:
        raise Complaint(f"the database keeps its size: {error}", "make room, then run corral db vacuum") from None


@db.command()
@where
@click.argument("file")
def backup(data: str | None, database: str | None, file: str) -> None:
    """Write the whole journal into FILE (.jsonl or .jsonl.gz), which proves itself. May run beside a server.

    Values of secrets and logs of tasks are not in it.
    """
    from corral.store.moving import backup as back_up

    with _told():
        end = back_up(_place(data, database), Path(file).absolute())
    tell(f"{count(end.seq, 'record')} are in {file}; the last has the hash {end.hash.hex()}")


@db.command()
@where
@click.argument("file")
def restore(data: str | None, database: str | None, file: str) -> None:
    """Fill an empty data folder or database from the backup in FILE."""
    from corral.store.moving import restore as fill

    if not Path(file).is_file():
        raise Complaint(f"there is no file {file}", "corral db backup makes one")
    with _told():
        place = _place(data, database)
        end = fill(Path(file).absolute(), place)
    tell(f"{count(end.seq, 'record')} are in {_shown(place)}; the last has the hash {end.hash.hex()}")


@db.command()
@click.option("--from", "source", metavar="PLACE", required=True, help="A data folder, or the address of a database.")
@click.option("--to", "target", metavar="PLACE", required=True, help="An empty one.")
@click.option("--key-file", metavar="FILE", default="", help="The keys of the secrets; needed for a database.")
def copy(source: str, target: str, key_file: str) -> int:
    """Copy a journal from one place to another, say from SQLite to PostgreSQL. No server may run on either.

    Both are verified. The source is left as it is; values of secrets are copied too.
    """
    from corral.cli.serve.secrets import copy_secrets
    from corral.store.address import verify as findings_of
    from corral.store.moving import copy as copy_whole

    with _told():
        places = [each if "://" in each else Path(each).absolute() for each in (source, target)]
        before, after = [_place(None, each) if isinstance(each, str) else each for each in places]
        if findings_of(before):
            raise Complaint(f"the journal in {_shown(before)} is not whole", "corral db verify says more", UNHEALTHY)
        end = copy_whole(before, after)
        secrets = copy_secrets(before, after, key_file)
        findings = findings_of(after)
    tell(f"{count(end.seq, 'record')} and {count(secrets, 'secret')} are in {_shown(after)}")
    for finding in findings:
        tell(f"{style(finding.about, fg='red')}: {finding.text}")
    return UNHEALTHY if findings else 0


@db.command()
@where
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def info(data: str | None, database: str | None, as_json: bool) -> None:
    """Say what there is: records, images, archives, sizes; of a database, who leads."""
    with _told():
        place = _place(data, database)
        reader = _reader(place)
        head, anchor, images = reader.durable_head(), reader.anchor(), reader.image_seqs()
        last = reader.read(head.seq - 1, 1) if head.seq else []
        size, leader = reader.size(), "" if isinstance(place, Path) else _leader(reader)
        reader.close()
    if as_json:
        found = {"records": head.seq, "archived": anchor.seq, "hash": head.hash.hex(), "images": images, "bytes": size}
        write_json(found | {"epoch": last[0].epoch if last else 0} | ({"leader": leader} if leader else {}))
        return
    lines = {
        "database" if leader else "folder": _shown(place),
        "records": f"{head.seq:,}" + (f", the last at {clock(last[0].at_ms)}" if last else ""),
        "archived": f"up to {anchor.seq:,}" if anchor.seq else "none",
        "epoch": str(last[0].epoch) if last else "0",
        "images": ", ".join(map(str, images)) or "none",
        "size": f"{size / (1 << 20):.1f} MiB",
        "hash": head.hash.hex(),
    } | ({"leader": leader} if leader else {})
    for title, text in lines.items():
        tell(f"{style(title, dim=True)}{' ' * (10 - len(title))}{text}")


# ---- which -----------------------------------------------------------------------------------------------------------


def _place(data: str | None, database: str | None) -> JournalPlace:
    from corral.store.moving import place_of

    return place_of(data_folder(data), database or "")


def _shown(place: JournalPlace) -> str:
    from corral.wire.address import shown

    return str(place) if isinstance(place, Path) else shown(place)


def _reader(place: JournalPlace) -> Any:
    if isinstance(place, Path):
        from corral.store.sqlite.reader import SqliteReader

        return SqliteReader(place)
    from corral.store.address import postgres

    return postgres().PostgresReader(place)


def _leader(reader: Any) -> str:
    now = reader.leadership()
    return f"{now.url}, epoch {now.epoch}, since {now.since} UTC" if now.is_held else "none"


@contextmanager
def _opened(data: str | None, database: str | None) -> Iterator[SqliteJournal | PostgresJournal]:
    with _told():
        place = _place(data, database)
        _reader(place).close()  # says so where there is none
        journal: SqliteJournal | PostgresJournal
        if isinstance(place, Path):
            from corral.store.sqlite.journal import SqliteJournal

            journal = SqliteJournal(place)
        else:
            from corral.store.address import postgres

            journal = postgres().PostgresJournal(place, url="corral db", folder=data_folder(data))
        try:
            yield journal
        finally:
            journal.close()


@contextmanager
def _told() -> Iterator[None]:
    from corral.server.vault.keys import BadKey
    from corral.server.vault.sealing import CannotOpen
    from corral.server.vault.store import NoKey
    from corral.store.archive import ArchiveRefused
    from corral.store.journal import JournalBroken, JournalBusy, JournalTooNew, JournalUnusable

    try:
        yield
    except JournalBusy as error:
        raise Complaint(str(error).rstrip("."), "corral down stops the server", exit_code=FAULT) from None
    except (JournalUnusable, JournalTooNew, ArchiveRefused) as error:
        raise Complaint(str(error).rstrip("."), "--data or --database names the journal of a server") from None
    except (BadKey, CannotOpen, NoKey) as error:
        raise Complaint(f"a secret cannot be copied: {error}", "--key-file names the keys of both places") from None
    except JournalBroken as error:
        hint = "corral db verify tells all that is wrong"
        raise Complaint(str(error).rstrip("."), hint, exit_code=UNHEALTHY) from None
