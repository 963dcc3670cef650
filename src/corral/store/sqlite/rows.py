"""Many rows in few statements.

Equivalent to ``executemany``; for speed it differs in how often it waits for the interpreter: that one lets go of the
interpreter's lock at every row and has to wait for its turn again, which on a busy server takes longer than the row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from corral.store.journal import Record
from corral.store.sql.by_job import pairs_of
from corral.store.sql.records import RECORD
from corral.store.sql.tables import SqlTables, Table

_SIZES = (256, 64, 16, 4, 1)


def put(connection: sqlite3.Connection, head: str, rows: Sequence[Sequence[Any]], tail: str = "") -> None:
    """Run ``head VALUES (?, ...), (?, ...) tail`` for all rows."""
    at = 0
    for size in _SIZES:
        while len(rows) - at >= size:
            part = rows[at : at + size]
            statement = _statement(head, len(part[0]), size, tail)
            connection.execute(statement, tuple(chain.from_iterable(part)))
            at += size


@cache
def _statement(head: str, width: int, size: int, tail: str) -> str:
    row = "(" + ", ".join("?" * width) + ")"
    return f"{head} VALUES {', '.join([row] * size)} {tail}"


def put_records(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Records, and which job each is about."""
    put(connection, f"INSERT INTO records ({RECORD})", [msgspec.structs.astuple(record) for record in records])
    put_pairs(connection, pairs_of(records))


def put_pairs(connection: sqlite3.Connection, pairs: Sequence[tuple[str, int]]) -> None:
    put(connection, "INSERT OR IGNORE INTO job_records (job, seq)", pairs)


def tables_of(connection: sqlite3.Connection) -> SqlTables:
    """The tables of the projection."""

    def put_rows(table: Table[Any, Any], rows: Sequence[Sequence[Any]]) -> None:
        put(connection, table.insert, rows, table.or_update)

    return SqlTables(connection, put_rows)
