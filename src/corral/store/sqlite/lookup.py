"""Lookups on SQLite: its SQL dialect."""

from __future__ import annotations

from corral.store.sql.connection import Dialect
from corral.store.sql.lookup import SqlLookup
from corral.store.sqlite.database import SqliteReaders

SQLITE = Dialect(
    begin="BEGIN",
    sieve="+",  # keeps SQLite from using an index on the column, which would give another order
    has_label="""
        EXISTS (
            SELECT 1 FROM json_each(labels) AS label
            WHERE json_extract(label.value, '$[0]') = ? AND json_extract(label.value, '$[1]') = ?
        )
    """,
    labelled="seq IN (SELECT seq FROM job_labels WHERE key = ? AND value = ?)",
)


class SqliteLookup(SqlLookup):
    """Implements ``Lookup`` on the projections of a journal."""

    def __init__(self, readers: SqliteReaders) -> None:
        super().__init__(readers, SQLITE)
