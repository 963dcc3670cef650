"""Items of batching queues in a table of their own, beside the journal: SQLite in the data folder, or PostgreSQL.

A writer thread commits what has come together in one transaction (group commit); the future of each write is done when
it is durable. A store of a later epoch fences every earlier one. Knows rows, not what an item means.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from msgspec import Struct

FILE = "batch.db"
WAITING = 0
DONE = 1
FAILED = 2
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS batch_queues (name TEXT PRIMARY KEY, body {bytes} NOT NULL)",
    """CREATE TABLE IF NOT EXISTS batch_items (
        number BIGINT PRIMARY KEY, queue TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
        priority INTEGER NOT NULL, deadline_ms BIGINT NOT NULL, arrived_ms BIGINT NOT NULL, payload {bytes},
        state INTEGER NOT NULL, result {bytes}, ended_ms BIGINT NOT NULL DEFAULT 0)""",
    "CREATE UNIQUE INDEX IF NOT EXISTS batch_items_by_id ON batch_items (queue, id)",
    "CREATE INDEX IF NOT EXISTS batch_items_by_end ON batch_items (queue, ended_ms) WHERE state <> 0",
    "CREATE INDEX IF NOT EXISTS batch_items_waiting ON batch_items (number) WHERE state = 0",
    "CREATE TABLE IF NOT EXISTS batch_epoch (one INTEGER PRIMARY KEY, epoch BIGINT NOT NULL)",
)


class StoreFenced(Exception):
    """A server of a later epoch owns the items."""


class ItemRow(Struct, frozen=True, gc=False):
    """One accepted item."""

    number: int
    queue: str
    id: str
    owner: str
    priority: int
    deadline_ms: int
    arrived_ms: int
    payload: bytes | None
    state: int = WAITING
    result: bytes | None = None
    ended_ms: int = 0


class BatchStore:
    """The open tables. Reading is done in the caller's thread, with a connection of its own."""

    def __init__(self, connect: Callable[[], Any], *, is_postgres: bool, epoch: int) -> None:
        self._mark = "%s" if is_postgres else "?"
        self._is_postgres = is_postgres
        self._epoch = epoch
        self._writer, self._reader = connect(), connect()
        self._prepare()
        self._todo: deque[tuple[str, Sequence[Any], Future[None] | None]] = deque()
        self._news = threading.Condition()
        self._is_ending = False
        self.has_failed: Callable[[BaseException], None] = lambda _: None
        self._thread = threading.Thread(target=self._write, name="batch-items", daemon=True)
        self._thread.start()

    def _prepare(self) -> None:
        cursor = self._writer.cursor()
        for statement in _SCHEMA:
            cursor.execute(statement.format(bytes="BYTEA" if self._is_postgres else "BLOB"))
        cursor.execute(self._sql("INSERT INTO batch_epoch VALUES (1, ?) ON CONFLICT (one) DO NOTHING"), (self._epoch,))
        cursor.execute(self._sql("UPDATE batch_epoch SET epoch = ? WHERE epoch <= ?"), (self._epoch, self._epoch))
        self._check_epoch(cursor)
        self._writer.commit()

    def _check_epoch(self, cursor: Any) -> None:
        cursor.execute("SELECT epoch FROM batch_epoch" + (" FOR SHARE" if self._is_postgres else ""))
        if cursor.fetchone()[0] != self._epoch:
            raise StoreFenced("a server of a later epoch owns the items")

    def _sql(self, text: str) -> str:
        return text.replace("?", self._mark)

    # --- reading ------------------------------------------------------------------------------------------

    def _read(self, text: str, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._reader.cursor()
        cursor.execute(self._sql(text), given)
        found = cursor.fetchall()
        self._reader.commit()
        return list(found)

    def queues(self) -> dict[str, bytes]:
        return {name: bytes(body) for name, body in self._read("SELECT name, body FROM batch_queues")}

    def waiting(self) -> list[ItemRow]:
        rows = self._read(
            "SELECT number, queue, id, owner, priority, deadline_ms, arrived_ms, payload FROM batch_items "
            "WHERE state = 0 ORDER BY number"
        )
        return [ItemRow(n, queue, id_, owner, p, d, a, bytes(body)) for n, queue, id_, owner, p, d, a, body in rows]

    def last_number(self) -> int:
        return int(self._read("SELECT COALESCE(MAX(number), 0) FROM batch_items")[0][0])

    def find(self, queue: str, ids: Sequence[str]) -> dict[str, ItemRow]:
        found: dict[str, ItemRow] = {}
        for first in range(0, len(ids), 500):
            part = ids[first : first + 500]
            marks = ", ".join("?" * len(part))
            for number, name, state, result in self._read(
                f"SELECT number, id, state, result FROM batch_items WHERE queue = ? AND id IN ({marks})", (queue, *part)
            ):
                raw = None if result is None else bytes(result)
                found[name] = ItemRow(number, queue, name, "", 0, 0, 0, None, state, raw)
        return found

    # --- writing ------------------------------------------------------------------------------------------

    def put_queue(self, name: str, body: bytes) -> Future[None]:
        text = "INSERT INTO batch_queues VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body"
        return self._later(text, [(name, body)])

    def drop_queue(self, name: str) -> Future[None]:
        self._later("DELETE FROM batch_items WHERE queue = ?", [(name,)])
        return self._later("DELETE FROM batch_queues WHERE name = ?", [(name,)])

    def add(self, rows: Sequence[ItemRow]) -> Future[None]:
        text = (
            "INSERT INTO batch_items (number, queue, id, owner, priority, deadline_ms, arrived_ms, payload, state) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT DO NOTHING"
        )
        given = [(r.number, r.queue, r.id, r.owner, r.priority, r.deadline_ms, r.arrived_ms, r.payload) for r in rows]
        return self._later(text, given)

    def end(self, ends: Sequence[tuple[int, bytes | None, int, int]]) -> Future[None]:
        """``ends``: state, result, time and number of each item."""
        text = "UPDATE batch_items SET state = ?, result = ?, ended_ms = ?, payload = NULL WHERE number = ?"
        return self._later(text, ends)

    def forget(self, queue: str, before_ms: int) -> Future[None]:
        text = "DELETE FROM batch_items WHERE queue = ? AND state <> 0 AND ended_ms < ?"
        return self._later(text, [(queue, before_ms)])

    def _later(self, text: str, given: Sequence[Any]) -> Future[None]:
        done: Future[None] = Future()
        with self._news:
            self._todo.append((text, given, done))
            self._news.notify()
        return done

    def _write(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._todo or self._is_ending)
                todo, self._todo = self._todo, deque()
            if not todo:
                return
            try:
                cursor = self._writer.cursor()
                if self._is_postgres:
                    self._check_epoch(cursor)
                for text, given, _ in todo:
                    cursor.executemany(self._sql(text), given)
                self._writer.commit()
            except BaseException as wrong:
                self._failed(todo, wrong)
                return
            for _, _, done in todo:
                if done is not None:
                    done.set_result(None)

    def _failed(self, todo: deque[tuple[str, Sequence[Any], Future[None] | None]], wrong: BaseException) -> None:
        """What was not written is answered as failed. No more can be written: the process ends and is started again."""
        for _, _, done in todo:
            if done is not None:
                done.set_exception(wrong)
        self.has_failed(wrong)

    def close(self) -> None:
        with self._news:
            self._is_ending = True
            self._news.notify()
        self._thread.join(10)
        self._writer.close()
        self._reader.close()


def open_batch_store(folder: Path, database: str, epoch: int) -> BatchStore:
    """``database``: the address of PostgreSQL; empty: a file in the folder."""
    if database:
        import psycopg

        return BatchStore(lambda: psycopg.connect(database, connect_timeout=5), is_postgres=True, epoch=epoch)

    def connect() -> sqlite3.Connection:
        found = sqlite3.connect(folder / FILE, check_same_thread=False, timeout=30)
        found.execute("PRAGMA journal_mode = WAL")
        found.execute("PRAGMA synchronous = FULL")
        return found

    return BatchStore(connect, is_postgres=False, epoch=epoch)
