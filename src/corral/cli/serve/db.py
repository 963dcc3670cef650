"""``corral db``: verify, rebuild, archive, back up, restore and copy the journal of a server.

Works on a data folder or a database, without a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from corral.cli.errors import FAULT, UNHEALTHY, Complaint
from corral.cli.lazy import Noun
from corral.cli.render import clock, count, print_line, print_note, style, write_json
from corral.cli.serve.data_folder import data_folder, data_option, database_option

if TYPE_CHECKING:
    from corral.store.backup import JournalPlace
    from corral.store.postgres import PostgresJournal
    from corral.store.sql.findings import Finding
    from corral.store.sqlite.journal import SqliteJournal

F = TypeVar("F", bound=Callable[..., Any])


def where(command: F) -> F:
    """The options that name the journal."""
    return data_option(database_option(command))


@click.group(cls=Noun)
def db() -> None:
    """The journal of a server: verify, back up, restore, copy, rebuild, archive."""


@db.command()
@where
@click.option("--heads", metavar="FILE", default="", help="File of signed heads to check the journal against.")
@click.option("--public-key", metavar="HEX", default="", help="Public key that must have signed them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def verify(data: str | None, database: str | None, heads: str, public_key: str, as_json: bool) -> int:
    """Verify every record, the hash chain, archives, images and tables. The server may be running."""
    from corral.store.location import verify as findings_of

    with _errors_as_complaints():
        place = _place(data, database)
        findings = findings_of(place)
        if heads:
            findings += _missing_heads(place, heads, public_key)
    if as_json:
        write_json(findings)
    elif not findings:
        print_line(f"the journal in {_shown(place)} is complete and valid")
    for finding in findings if not as_json else ():
        at = f" at record {finding.seq}" if finding.seq is not None else ""
        print_line(f"{style(finding.about, fg='red')}{at}: {finding.text}")
    if findings and not as_json:
        wrong = count(len(findings), "error")
        print_note(f"{wrong}; keep a copy of {_shown(place)} before you do anything else")
    return UNHEALTHY if findings else 0


def _missing_heads(place: JournalPlace, file: str, public_key: str) -> list[Finding]:
    """Attested heads that the journal does not contain."""
    from corral.store.attest import BadAttestation, read_lines
    from corral.store.backup import missing_heads
    from corral.store.sql.findings import Finding

    try:
        with Path(file).open("rb") as lines:
            attested = [each.head for each in read_lines(lines, public_key)]
    except OSError as error:
        raise Complaint(
            f"cannot read {file}: {(error.strerror or '').lower()}", "name the file of signed heads with --heads"
        ) from None
    except BadAttestation as error:
        raise Complaint(f"{file}: {error}", "use another copy of the file", UNHEALTHY) from None
    text = "record {} is missing or has another hash than was attested: the journal was changed or restored from a copy"
    return [Finding("attested", text.format(head.seq), head.seq) for head in missing_heads(place, attested)]


@db.command()
@where
def rebuild(data: str | None, database: str | None) -> None:
    """Rebuild the tables of jobs, attempts and usage from the journal. The server must be stopped."""
    with _opened(data, database) as journal:
        journal.rebuild()
        print_line(f"rebuilt from {count(journal.head.seq, 'record')}")


@db.command()
@where
@click.option(
    "--upto", type=click.IntRange(min=1), metavar="SEQ", help="Last record to archive; default: as many as possible."
)
@click.option("--to", "target", metavar="FILE", help="Archive file; default: in the data folder.")
@click.option("--no-vacuum", is_flag=True, help="Do not shrink the database file.")
def archive(data: str | None, database: str | None, upto: int | None, target: str | None, no_vacuum: bool) -> None:
    """Move old records into an archive file and free their space. The hash chain stays valid. Stop the server first.

    A database file of an earlier version is rewritten, which needs free disk space for a copy of the remaining
    records. PostgreSQL reuses the space by itself.
    """
    from corral.store.archive import ArchiveRefused

    with _opened(data, database) as journal:
        last = upto or min(journal.image_seqs(), default=0)
        if not last:
            hint = "records older than the latest image can be archived; the server writes images regularly"
            raise Complaint("there is nothing to archive yet", hint)
        try:
            path = journal.archive(last, Path(target).absolute() if target else None)
        except ArchiveRefused as error:
            raise Complaint(str(error).rstrip("."), "list the records with: corral db info") from None
        print_line(f"archived the records up to {last} in {path}")
        if not no_vacuum:
            _shrink(journal)


@db.command()
@where
def vacuum(data: str | None, database: str | None) -> None:
    """Shrink the database file after archiving. The server must be stopped."""
    with _opened(data, database) as journal:
        _shrink(journal)


def _shrink(journal: SqliteJournal | PostgresJournal) -> None:
    from corral.store.sqlite.journal import SqliteJournal
    from corral.store.sqlite.space import NoRoom

    if not isinstance(journal, SqliteJournal):
        print_line(
            "PostgreSQL reuses the space of archived records by itself; VACUUM FULL records returns it to the disk"
        )
        return
    try:
        print_line(f"the database is {journal.shrink() / (1 << 20):.1f} MiB smaller")
    except NoRoom as error:
        raise Complaint(
            f"the database keeps its size: {error}", "free some disk space, then run corral db vacuum"
        ) from None


@db.command()
@where
@click.argument("file")
def backup(data: str | None, database: str | None, file: str) -> None:
    """Back up the journal into FILE (.jsonl or .jsonl.gz), which can be verified by itself. The server may be running.

    Secrets and task logs are not included.
    """
    from corral.store.backup import backup as back_up

    with _errors_as_complaints():
        end = back_up(_place(data, database), Path(file).absolute())
    print_line(f"{count(end.seq, 'record')} are in {file}; the last has the hash {end.hash.hex()}")


@db.command()
@where
@click.argument("file")
def restore(data: str | None, database: str | None, file: str) -> None:
    """Fill an empty data folder or database from the backup in FILE."""
    from corral.store.backup import restore as fill

    if not Path(file).is_file():
        raise Complaint(f"there is no file {file}", "create one with: corral db backup")
    with _errors_as_complaints():
        place = _place(data, database)
        end = fill(Path(file).absolute(), place)
    print_line(f"{count(end.seq, 'record')} are in {_shown(place)}; the last has the hash {end.hash.hex()}")


@db.command()
@click.option(
    "--from", "source", metavar="PLACE", required=True, help="Source: a data folder, or the address of a database."
)
@click.option("--to", "target", metavar="PLACE", required=True, help="Target, which must be empty.")
@click.option("--key-file", metavar="FILE", default="", help="Keys of the secrets; required for a database.")
def copy(source: str, target: str, key_file: str) -> int:
    """Copy a journal, for example from SQLite to PostgreSQL. No server may be running on either.

    Both are verified. The source is not changed; secrets are copied too.
    """
    from corral.cli.serve.copy_secrets import copy_secrets
    from corral.store.backup import copy as copy_whole
    from corral.store.location import verify as findings_of

    with _errors_as_complaints():
        places = [each if "://" in each else Path(each).absolute() for each in (source, target)]
        before, after = [_place(None, each) if isinstance(each, str) else each for each in places]
        if findings_of(before):
            raise Complaint(f"the journal in {_shown(before)} is damaged", "for details: corral db verify", UNHEALTHY)
        end = copy_whole(before, after)
        secrets = copy_secrets(before, after, key_file)
        findings = findings_of(after)
    print_line(f"{count(end.seq, 'record')} and {count(secrets, 'secret')} are in {_shown(after)}")
    for finding in findings:
        print_line(f"{style(finding.about, fg='red')}: {finding.text}")
    return UNHEALTHY if findings else 0


@db.command()
@where
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def info(data: str | None, database: str | None, as_json: bool) -> None:
    """Show records, images, archives and sizes; of a shared database, also the leader."""
    with _errors_as_complaints():
        place = _place(data, database)
        reader = _reader(place)
        head = reader.durable_head()
        anchor = reader.anchor()
        images = reader.image_seqs()
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
        print_line(f"{style(title, dim=True)}{' ' * (10 - len(title))}{text}")


# ---- which journal ---------------------------------------------------------------------------------------------------


def _place(data: str | None, database: str | None) -> JournalPlace:
    from corral.store.backup import place_of

    return place_of(data_folder(data), database or "")


def _shown(place: JournalPlace) -> str:
    from corral.wire.address import shown

    return str(place) if isinstance(place, Path) else shown(place)


def _reader(place: JournalPlace) -> Any:
    if isinstance(place, Path):
        from corral.store.sqlite.reader import SqliteReader

        return SqliteReader(place)
    from corral.store.location import postgres

    return postgres().PostgresReader(place)


def _leader(reader: Any) -> str:
    now = reader.leadership()
    return f"{now.url}, epoch {now.epoch}, since {now.since} UTC" if now.is_held else "none"


@contextmanager
def _opened(data: str | None, database: str | None) -> Iterator[SqliteJournal | PostgresJournal]:
    with _errors_as_complaints():
        place = _place(data, database)
        _reader(place).close()  # fails with a message if there is none
        journal: SqliteJournal | PostgresJournal
        if isinstance(place, Path):
            from corral.store.sqlite.journal import SqliteJournal

            journal = SqliteJournal(place)
        else:
            from corral.store.location import postgres

            journal = postgres().PostgresJournal(place, url="corral db", folder=data_folder(data))
        try:
            yield journal
        finally:
            journal.close()


@contextmanager
def _errors_as_complaints() -> Iterator[None]:
    from corral.server.vault.sealing import CannotOpen
    from corral.server.vault.sealing_keys import BadKey
    from corral.server.vault.secret_store import NoKey
    from corral.store.archive import ArchiveRefused
    from corral.store.journal import JournalBroken, JournalBusy, JournalTooNew, JournalUnusable

    try:
        yield
    except JournalBusy as error:
        raise Complaint(str(error).rstrip("."), "stop the server with: corral down", exit_code=FAULT) from None
    except (JournalUnusable, JournalTooNew, ArchiveRefused) as error:
        raise Complaint(
            str(error).rstrip("."), "name the data folder of a server with --data, or its database with --database"
        ) from None
    except (BadKey, CannotOpen, NoKey) as error:
        raise Complaint(f"a secret cannot be copied: {error}", "name the keys with --key-file") from None
    except JournalBroken as error:
        hint = "for all errors: corral db verify"
        raise Complaint(str(error).rstrip("."), hint, exit_code=UNHEALTHY) from None
