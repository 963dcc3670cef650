"""Lookups on PostgreSQL: its SQL dialect."""

from __future__ import annotations

from corral.store.postgres.database import PostgresReaders
from corral.store.sql.connection import Dialect
from corral.store.sql.lookup import SqlLookup

POSTGRES = Dialect(
    begin="BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    sieve="",
    has_label="""
        EXISTS (
            SELECT 1 FROM json_array_elements(labels::json) AS label
            WHERE label ->> 0 = ? AND label ->> 1 = ?
        )
    """,
    labelled="seq IN (SELECT seq FROM job_labels WHERE key = md5(?::text) AND value = md5(?::text))",
    is_far=True,
)


class PostgresLookup(SqlLookup):
    """Implements ``Lookup`` on the projections of a journal."""

    def __init__(self, readers: PostgresReaders) -> None:
        super().__init__(readers, POSTGRES)
