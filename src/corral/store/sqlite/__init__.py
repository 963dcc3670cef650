"""The journal on SQLite."""

from corral.store.sqlite.journal import SqliteJournal
from corral.store.sqlite.lookup import SqliteLookup
from corral.store.sqlite.reader import SqliteReader

__all__ = ["SqliteJournal", "SqliteLookup", "SqliteReader"]
