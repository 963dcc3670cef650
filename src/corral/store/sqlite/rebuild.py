"""The projections made anew from the records: in place, or beside the old ones to compare them.

Knows where records are: in archives first, then in the database. Knows nothing of what the rows mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from corral.store.archive import read_archive
from corral.store.journal import Record
from corral.store.projection import fold
from corral.store.sqlite.database import FILE_NAME, connect, open_database
from corral.store.sqlite.removal import archives_in
from corral.store.sqlite.tables import PROJECTED, SqliteTables

_AT_ONCE = 2000


def records_in(connection: sqlite3.Connection, after: int = 0) -> Iterator[Record]:
    """The records of the database above a number, in order, as they are."""
    while True:
        rows = connection.execute(
            "SELECT seq, epoch, format, at_ms, actor, request, body, hash FROM records WHERE seq > ?"
            " ORDER BY seq LIMIT ?",
            (after, _AT_ONCE),
        ).fetchall()
        if not rows:
            return
        yield from (Record(*row) for row in rows)
        after = rows[-1][0]


def whole_journal(connection: sqlite3.Connection, folder: Path) -> Iterator[Record]:
    """Every record there ever was: those of the archives, then those of the database."""
    last = 0
    for archived in archives_in(connection):
        for record in read_archive(archived.path_from(folder)):
            if record.seq > last:
                yield record
        last = max(last, archived.last_seq)
    yield from records_in(connection, last)


def rebuild(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Empty the projections and fold all records into them; all of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table in PROJECTED:
            connection.execute(f"DELETE FROM {table.name}")
        _fold_all(connection, records)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def differences(folder: Path, records: Iterable[Record]) -> list[str]:
    """How the projections in a folder differ from what these records, all there are, give. Changes nothing."""
    with TemporaryDirectory(prefix="corral-verify-") as scratch:
        fresh = open_database(Path(scratch))
        try:
            fresh.execute("PRAGMA synchronous = OFF")
            rebuild(fresh, records)
        finally:
            fresh.close()
        connection = connect(folder / FILE_NAME)
        try:
            connection.execute("ATTACH ? AS fresh", (str(Path(scratch) / FILE_NAME),))
            return [told for table in PROJECTED for told in _compared(connection, table.name)]
        finally:
            connection.close()


def _compared(connection: sqlite3.Connection, table: str) -> Sequence[str]:
    found = []
    for one, other, what in (("main", "fresh", "should not be there"), ("fresh", "main", "is missing")):
        rows = connection.execute(
            f"SELECT * FROM {one}.{table} EXCEPT SELECT * FROM {other}.{table} LIMIT 4"
        ).fetchall()
        found += [f"{table}: {row!r:.200} {what}" for row in rows[:3]]
        if len(rows) > 3:
            found.append(f"{table}: and more that {what}")
    return found


def _fold_all(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    tables = SqliteTables(connection)
    source = iter(records)
    while part := list(islice(source, _AT_ONCE)):
        fold(tables.tables, part)
        tables.flush()
