"""Chunks of figures in the shared database, so that they survive a change of leader. Knows one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.store.postgres.database import PostgresReaders
from corral.store.rings import ChunkKey

_PUT = (
    "INSERT INTO chunks (name, step_ms, start_ms, body) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (name, step_ms, start_ms) DO UPDATE SET body = excluded.body"
)


class PostgresChunks:
    def __init__(self, readers: PostgresReaders) -> None:
        self._readers = readers

    def put(self, chunks: Iterable[tuple[ChunkKey, bytes]]) -> None:
        with self._readers.connection() as link:
            for key, body in chunks:
                link.execute(_PUT, (*key, body))

    def get(self, names: Sequence[str], step_ms: int, since_ms: int, until_ms: int) -> list[tuple[ChunkKey, bytes]]:
        marks = ", ".join("?" * len(names))
        question = (
            "SELECT name, step_ms, start_ms, body FROM chunks "
            f"WHERE name IN ({marks}) AND step_ms = ? AND start_ms BETWEEN ? AND ?"
        )
        with self._readers.connection() as link:
            rows = link.execute(question, (*names, step_ms, since_ms, until_ms)).fetchall()
        return [(ChunkKey(name, step, start), bytes(body)) for name, step, start, body in rows]

    def drop(self, step_ms: int, before_ms: int) -> None:
        with self._readers.connection() as link:
            link.execute("DELETE FROM chunks WHERE step_ms = ? AND start_ms < ?", (step_ms, before_ms))
