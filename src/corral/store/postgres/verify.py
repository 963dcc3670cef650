"""Verifies the journal in a database: every record, every link of the chain, its end, archives, images and projections.

Changes nothing, and may be used while a server writes: it reads one snapshot. Continues after an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg

from corral.store.journal import JournalUnusable
from corral.store.postgres import images
from corral.store.postgres.database import PostgresConnection, connect, schema_version, unreachable
from corral.store.postgres.rows import fold_all
from corral.store.sql.by_job import wrong_entries
from corral.store.sql.findings import Finding, wrong_archives, wrong_records
from corral.store.sql.record_reader import whole_journal
from corral.store.sql.tables import PROJECTED
from corral.wire.address import shown


def verify(address: str, folder: Path | None = None) -> list[Finding]:
    """All errors found in the journal of a database; empty if it is intact."""
    link = connect(address)
    try:
        if not schema_version(link, address):
            raise JournalUnusable(f"there is no journal in {shown(address)}. Name the database of a server.")
        link.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        return list(_findings(link, folder or Path.cwd()))
    except psycopg.OperationalError as wrong:
        raise unreachable(address, wrong) from wrong
    except (psycopg.Error, UnicodeDecodeError) as wrong:
        return [Finding("database", f"{shown(address)}: {wrong}")]
    except TypeError:
        return [Finding("database", f"{shown(address)}: a table that must have one row is empty")]
    finally:
        link.roll_back()
        link.close()


def _findings(link: PostgresConnection, folder: Path) -> Iterator[Finding]:
    found = [*wrong_archives(link, folder), *wrong_records(link)]
    yield from found
    yield from _images(link)
    if not found:  # otherwise a comparison makes no sense
        yield from (Finding("projection", text) for text in wrong_entries(link))
        yield from (Finding("projection", text) for text in _differences(link, folder))


def _images(link: PostgresConnection) -> Iterator[Finding]:
    (last,) = link.execute("SELECT seq FROM writer").fetchone() or (0,)
    for seq in images.seqs(link):
        if images.load(link, seq) is None:
            yield Finding("image", f"the image of record {seq} is damaged; an older one, or none, is used instead", seq)
        elif seq > last:
            yield Finding("image", f"there is an image of record {seq}, but the last record is {last}", seq)


def _differences(link: PostgresConnection, folder: Path) -> Iterator[str]:
    """Differences between the projections and a fold of all records. The fold goes into temporary tables of the same
    names, which hide those of the database in this session."""
    (kept,) = link.execute("SELECT quote_ident(current_schema())").fetchone() or ("public",)
    for table in PROJECTED:
        link.execute(f"CREATE TEMPORARY TABLE {table.name} (LIKE {kept}.{table.name} INCLUDING ALL) ON COMMIT DROP")
    fold_all(link, whole_journal(link, folder))
    for table in PROJECTED:
        yield from _compared(link, table.name, f"{kept}.{table.name}", f"pg_temp.{table.name}")


def _compared(link: PostgresConnection, table: str, kept: str, fresh: str) -> Iterator[str]:
    for one, other, what in ((kept, fresh, "should not exist"), (fresh, kept, "is missing")):
        rows = link.execute(f"SELECT * FROM {one} EXCEPT SELECT * FROM {other} LIMIT 4").fetchall()
        yield from (f"{table}: {row!r:.200} {what}" for row in rows[:3])
        if len(rows) > 3:
            yield f"{table}: more rows: {what}"
