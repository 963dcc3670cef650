"""Fills an empty database with the records of another journal, all or none.

Knows when a database is empty. No server can lead meanwhile: the rows of the leader and of the writer are locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from corral.store.journal import JournalUnusable
from corral.store.postgres.database import PostgresConnection, open_database
from corral.wire.address import shown


@contextmanager
def filling(address: str) -> Iterator[PostgresConnection]:
    """The transaction that fills it."""
    with closing(open_database(address)) as link, link.transaction():
        link.execute("SELECT 1 FROM leader FOR UPDATE")
        if link.execute("SELECT epoch, seq FROM writer FOR UPDATE").fetchone() != (0, 0):
            raise JournalUnusable(f"there is already a journal in {shown(address)}. Name an empty database.")
        yield link
        link.execute("ANALYZE")  # the query planner has no statistics of the new rows yet
