"""Many rows at once, without waiting for each: the driver sends them in one stream.

Knows how rows are written; what is in them comes from the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from corral.store.journal import Record
from corral.store.postgres.database import Link, marked
from corral.store.projection import fold
from corral.store.sql.by_job import enter_again, pairs_of
from corral.store.sql.records import AT_ONCE, RECORD
from corral.store.sql.tables import PROJECTED, SqlTables, Table

_INSERT = f"INSERT INTO records ({RECORD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_PAIR = "INSERT INTO job_records (job, seq) VALUES (?, ?) ON CONFLICT DO NOTHING"


def put_records(link: Link, records: Sequence[Record]) -> None:
    """Records, and which job each is about."""
    link.raw.cursor().executemany(marked(_INSERT), [msgspec.structs.astuple(record) for record in records])
    put_pairs(link, pairs_of(records))


def put_pairs(link: Link, pairs: Sequence[tuple[str, int]]) -> None:
    link.raw.cursor().executemany(marked(_INSERT_PAIR), list(map(_storable, pairs)))


def tables_of(link: Link) -> SqlTables:
    """The tables of the projection."""

    def put(table: Table[Any, Any], rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(table.columns))
        statement = f"{table.insert} VALUES ({marks}) {table.or_update}"
        link.raw.cursor().executemany(marked(statement), list(map(_storable, rows)))

    return SqlTables(link, put)


def _storable(row: Sequence[Any]) -> Sequence[Any]:
    """PostgreSQL keeps no zero bytes in texts; where people have written one, a sign that looks like it is kept."""
    if any(isinstance(value, str) and ("\0" in value or "\\u0000" in value) for value in row):
        return [v.replace("\0", "␀").replace("\\u0000", "␀") if isinstance(v, str) else v for v in row]
    return row


def rebuild(link: Link, records: Iterable[Record]) -> None:
    """Make all that is looked up again from the records, in the transaction that is open."""
    fold_all(link, records)
    enter_again(link)


def fold_all(link: Link, records: Iterable[Record]) -> None:
    """Empty the projections and fold all records into them. Touches no other table."""
    for table in PROJECTED:
        link.execute(f"DELETE FROM {table.name}")
    tables, source = tables_of(link), iter(records)
    while part := list(islice(source, AT_ONCE)):
        fold(tables.tables, part)
        tables.flush()
