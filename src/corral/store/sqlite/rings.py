"""Chunks of figures in a SQLite file of their own, so that writing them never delays the journal.

Not synced to disk with every write: what is lost in a crash is lost without harm. A damaged file is replaced.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from corral.store.rings import ChunkKey

FILE_NAME = "series.db"
_TABLE = """
CREATE TABLE IF NOT EXISTS chunks (
    name TEXT NOT NULL, step_ms INTEGER NOT NULL, start_ms INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (name, step_ms, start_ms)
) WITHOUT ROWID
"""


class SqliteChunks:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._lock = threading.Lock()
        try:
            self._connection = self._opened()
        except sqlite3.DatabaseError:
            self._path.unlink(missing_ok=True)
            self._connection = self._opened()

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._path.chmod(0o600)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_TABLE)
        return connection

    def put(self, chunks: Iterable[tuple[ChunkKey, bytes]]) -> None:
        with self._lock:
            self._connection.execute("BEGIN")
            rows = [(*key, body) for key, body in chunks]
            self._connection.executemany("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?)", rows)
            self._connection.execute("COMMIT")

    def get(self, names: Sequence[str], step_ms: int, since_ms: int, until_ms: int) -> list[tuple[ChunkKey, bytes]]:
        marks = ", ".join("?" * len(names))
        question = (
            "SELECT name, step_ms, start_ms, body FROM chunks "
            f"WHERE name IN ({marks}) AND step_ms = ? AND start_ms BETWEEN ? AND ?"
        )
        with self._lock:
            rows = self._connection.execute(question, (*names, step_ms, since_ms, until_ms)).fetchall()
        return [(ChunkKey(name, step, start), body) for name, step, start, body in rows]

    def drop(self, step_ms: int, before_ms: int) -> None:
        with self._lock:
            self._connection.execute("DELETE FROM chunks WHERE step_ms = ? AND start_ms < ?", (step_ms, before_ms))

    def close(self) -> None:
        with self._lock:
            self._connection.close()
