"""Writes many rows at once: the driver sends them in one stream, without waiting for each.

Knows how rows are written; the tables define their content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from corral.store.journal import Record
from corral.store.postgres.database import PostgresConnection, marked
from corral.store.projection import fold
from corral.store.sql.by_job import enter_again, pairs_of
from corral.store.sql.record_reader import AT_ONCE, RECORD
from corral.store.sql.tables import PROJECTED, SqlTable, SqlTables, Values, storable

_INSERT = f"INSERT INTO records ({RECORD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_PAIR = "INSERT INTO job_records (job, seq) VALUES (?, ?) ON CONFLICT DO NOTHING"


def put_records(link: PostgresConnection, records: Sequence[Record]) -> None:
    """Write records, and the job that each one is about."""
    link.raw.cursor().executemany(marked(_INSERT), [msgspec.structs.astuple(record) for record in records])
    put_pairs(link, pairs_of(records))


def put_pairs(link: PostgresConnection, pairs: Sequence[tuple[str, int]]) -> None:
    link.raw.cursor().executemany(marked(_INSERT_PAIR), list(map(_storable, pairs)))


def tables_of(link: PostgresConnection) -> SqlTables:
    """The tables of the projection."""

    def put(table: SqlTable[Any, Any], rows: Sequence[Values]) -> None:
        marks = ", ".join("?" * len(table.columns))
        statement = f"{table.insert} VALUES ({marks}) {table.or_update}"
        link.raw.cursor().executemany(marked(statement), [_storable(storable(table, row)) for row in rows])

    return SqlTables(link, put)


def _storable(row: Sequence[Any]) -> Sequence[Any]:
    """Replace zero bytes in texts, which PostgreSQL cannot store, by a visible symbol."""
    if any(isinstance(value, str) and ("\0" in value or "\\u0000" in value) for value in row):
        return [v.replace("\0", "␀").replace("\\u0000", "␀") if isinstance(v, str) else v for v in row]
    return row


def rebuild(link: PostgresConnection, records: Iterable[Record]) -> None:
    """Build all projections again from the records, in the open transaction."""
    fold_all(link, records)
    enter_again(link)


def fold_all(link: PostgresConnection, records: Iterable[Record]) -> None:
    """Empty the projections and fold all records into them. Touches no other table."""
    for table in PROJECTED:
        link.execute(f"DELETE FROM {table.name}")
    tables, source = tables_of(link), iter(records)
    while part := list(islice(source, AT_ONCE)):
        fold(tables.tables, part)
        tables.flush()
