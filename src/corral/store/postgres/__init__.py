"""The journal on PostgreSQL. Needs the extra ``postgres``; ``store.address.postgres`` says so where it is missing."""

from corral.store.postgres.database import PostgresReaders, connect
from corral.store.postgres.filling import filling
from corral.store.postgres.journal import PostgresJournal
from corral.store.postgres.lookup import PostgresLookup
from corral.store.postgres.reader import PostgresReader
from corral.store.postgres.rings import PostgresChunks
from corral.store.postgres.rows import put_records, tables_of
from corral.store.postgres.secrets import PostgresSecrets
from corral.store.postgres.verify import verify

__all__ = [
    "PostgresChunks",
    "PostgresJournal",
    "PostgresLookup",
    "PostgresReader",
    "PostgresReaders",
    "PostgresSecrets",
    "connect",
    "filling",
    "put_records",
    "tables_of",
    "verify",
]
