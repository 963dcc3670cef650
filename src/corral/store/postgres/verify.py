"""Whether the record in a database is whole: every record, every link of the chain, its end, archives, images and
projections, and what is wrong with each.

Changes nothing, and may be used while a server writes: all of it is one moment. Goes on after a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg

from corral.store.journal import JournalUnusable
from corral.store.postgres import images
from corral.store.postgres.database import Link, connect, schema_version, unreachable
from corral.store.postgres.rows import fold_all
from corral.store.sql.findings import Finding, wrong_archives, wrong_records
from corral.store.sql.records import whole_journal
from corral.store.sql.tables import PROJECTED
from corral.wire.address import shown


def verify(address: str, folder: Path | None = None) -> list[Finding]:
    """All that is wrong with the journal in a database; nothing: it is whole."""
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
        return [Finding("database", f"{shown(address)}: a table has lost its only row")]
    finally:
        link.roll_back()
        link.close()


def _findings(link: Link, folder: Path) -> Iterator[Finding]:
    found = [*wrong_archives(link, folder), *wrong_records(link)]
    yield from found
    yield from _images(link)
    if not found:  # otherwise there is nothing to compare with
        yield from (Finding("projection", text) for text in _differences(link, folder))


def _images(link: Link) -> Iterator[Finding]:
    (last,) = link.execute("SELECT seq FROM writer").fetchone() or (0,)
    for seq in images.seqs(link):
        if images.load(link, seq) is None:
            yield Finding("image", f"the image of record {seq} is damaged; an older one, or none, is used instead", seq)
        elif seq > last:
            yield Finding("image", f"there is an image of record {seq}, and the last record is {last}", seq)


def _differences(link: Link, folder: Path) -> Iterator[str]:
    """How the projections differ from what all records give. Tables of this session alone stand before those of the
    database under the same names, so that what is folded goes there."""
    (kept,) = link.execute("SELECT quote_ident(current_schema())").fetchone() or ("public",)
    for table in PROJECTED:
        link.execute(f"CREATE TEMPORARY TABLE {table.name} (LIKE {kept}.{table.name} INCLUDING ALL) ON COMMIT DROP")
    fold_all(link, whole_journal(link, folder))
    for table in PROJECTED:
        yield from _compared(link, table.name, f"{kept}.{table.name}", f"pg_temp.{table.name}")


def _compared(link: Link, table: str, kept: str, fresh: str) -> Iterator[str]:
    for one, other, what in ((kept, fresh, "should not be there"), (fresh, kept, "is missing")):
        rows = link.execute(f"SELECT * FROM {one} EXCEPT SELECT * FROM {other} LIMIT 4").fetchall()
        yield from (f"{table}: {row!r:.200} {what}" for row in rows[:3])
        if len(rows) > 3:
            yield f"{table}: and more that {what}"
