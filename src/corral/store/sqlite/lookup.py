"""Look-ups on SQLite: what is peculiar to its SQL."""

from __future__ import annotations

from corral.store.sql.connection import Dialect
from corral.store.sql.lookup import SqlLookup
from corral.store.sqlite.database import Readers

SQLITE = Dialect(
    begin="BEGIN",
    sieve="+",  # an index on such a column is not used; it would give another order
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

    def __init__(self, readers: Readers) -> None:
        super().__init__(readers, SQLITE)
