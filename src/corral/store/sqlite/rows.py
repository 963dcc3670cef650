"""Writes many rows with few statements.

Equivalent to ``executemany``; for speed it releases the interpreter lock less often. ``executemany`` releases it for
every row and must wait to get it back, which on a busy server takes longer than the row.
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
from corral.store.sql.record_reader import RECORD
from corral.store.sql.tables import SqlTable, SqlTables, Values, storable

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
    """Write records, and the job that each one is about."""
    put(connection, f"INSERT INTO records ({RECORD})", [msgspec.structs.astuple(record) for record in records])
    put_pairs(connection, pairs_of(records))


def put_pairs(connection: sqlite3.Connection, pairs: Sequence[tuple[str, int]]) -> None:
    put(connection, "INSERT OR IGNORE INTO job_records (job, seq)", pairs)


def tables_of(connection: sqlite3.Connection) -> SqlTables:
    """The tables of the projection."""

    def put_rows(table: SqlTable[Any, Any], rows: Sequence[Values]) -> None:
        try:
            put(connection, table.insert, rows, table.or_update)
        except OverflowError:  # a number is too large; rows written before it are written again unchanged
            put(connection, table.insert, [storable(table, row) for row in rows], table.or_update)

    return SqlTables(connection, put_rows)
