"""An empty database about to be given the records of another journal: all of them or none.

Knows what empty means. Nobody can lead meanwhile: the rows of the leader and of the writer are locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from corral.store.journal import JournalUnusable
from corral.store.postgres.database import Link, open_database
from corral.wire.address import shown


@contextmanager
def filling(address: str) -> Iterator[Link]:
    """The transaction that fills it."""
    with closing(open_database(address)) as link, link.transaction():
        link.execute("SELECT 1 FROM leader FOR UPDATE")
        if link.execute("SELECT epoch, seq FROM writer FOR UPDATE").fetchone() != (0, 0):
            raise JournalUnusable(f"there is a journal in {shown(address)} already. Name an empty database.")
        yield link
        link.execute("ANALYZE")  # so much has come at once that the planner knows nothing of it yet
