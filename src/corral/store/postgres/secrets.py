"""Values of secrets in the database, shared by all servers. Names and times are in the journal.

Knows one table. Rights are checked elsewhere.
"""

from __future__ import annotations

from corral.store.postgres.database import PostgresReaders


class PostgresSecrets:
    """Values by queue and name. Each change is durable when it returns."""

    def __init__(self, readers: PostgresReaders) -> None:
        self._readers = readers

    def put(self, queue: str, name: str, value: bytes) -> None:
        with self._readers.connection() as link:
            link.execute(
                "INSERT INTO secrets (queue, name, value) VALUES (?, ?, ?)"
                " ON CONFLICT (queue, name) DO UPDATE SET value = excluded.value",
                (queue, name, value),
            )

    def get(self, queue: str, name: str) -> bytes | None:
        with self._readers.connection() as link:
            row = link.execute("SELECT value FROM secrets WHERE queue = ? AND name = ?", (queue, name)).fetchone()
        return None if row is None else bytes(row[0])

    def drop(self, queue: str, name: str) -> None:
        with self._readers.connection() as link:
            link.execute("DELETE FROM secrets WHERE queue = ? AND name = ?", (queue, name))
