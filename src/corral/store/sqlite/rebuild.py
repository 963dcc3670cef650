"""Builds the projections again from the records: in place, or in another database to compare them.

The caller passes the records. Knows nothing about what the rows mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from corral.store.journal import Record
from corral.store.projection import fold
from corral.store.sql.by_job import enter_again
from corral.store.sql.record_reader import AT_ONCE
from corral.store.sql.tables import PROJECTED
from corral.store.sqlite.database import FILE_NAME, connect, open_database
from corral.store.sqlite.rows import tables_of


def rebuild(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Empty the projections and fold all records into them, atomically."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table in PROJECTED:
            connection.execute(f"DELETE FROM {table.name}")
        _fold_all(connection, records)
        enter_again(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def differences(folder: Path, records: Iterable[Record]) -> list[str]:
    """Differences between the projections in a folder and a fold of all its records. Changes nothing."""
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
            return [text for table in PROJECTED for text in _compared(connection, table.name)]
        finally:
            connection.close()


def _compared(connection: sqlite3.Connection, table: str) -> Sequence[str]:
    found = []
    for one, other, what in (("main", "fresh", "should not exist"), ("fresh", "main", "is missing")):
        rows = connection.execute(
            f"SELECT * FROM {one}.{table} EXCEPT SELECT * FROM {other}.{table} LIMIT 4"
        ).fetchall()
        found += [f"{table}: {row!r:.200} {what}" for row in rows[:3]]
        if len(rows) > 3:
            found.append(f"{table}: more rows: {what}")
    return found


def _fold_all(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    tables = tables_of(connection)
    source = iter(records)
    while part := list(islice(source, AT_ONCE)):
        fold(tables.tables, part)
        tables.flush()
