"""The SQLite database: connections as the journal needs them, the newest schema, and a pool for readers.

Knows pragmas and schema versions. Knows nothing about what the tables mean. Schema changes are files in ``schema/``,
applied in order and only forward.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from corral.io.files import sync
from corral.store.journal import JournalTooNew, JournalUnusable
from corral.store.sqlite.space import KEEP_ACCOUNT

FILE_NAME = "journal.db"

#: How long the server waits for a lock of a reader or another program before that is an error.
BUSY_MS = 10_000


#: Every commit is synced to disk before it is acknowledged.
SYNCHRONOUS = "FULL"
#: Pages in the write-ahead log before a checkpoint.
CHECKPOINT_PAGES = 4000


def connect(path: Path, *, for_writing: bool = False) -> sqlite3.Connection:
    """A connection without implicit transactions."""
    where = f"file:{quote(str(path))}?mode=rw"  # not "rwc": opening must not create a missing file
    connection = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    if for_writing:
        connection.execute(KEEP_ACCOUNT)  # affects only a database without pages
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA cache_size = -16000")
        connection.execute("PRAGMA foreign_keys = ON")
    else:
        connection.execute("PRAGMA query_only = ON")
    return connection


def open_database(folder: Path) -> sqlite3.Connection:
    """The connection of the writer, with the newest schema; creates the database if there is none."""
    path = folder / FILE_NAME
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    except OSError as wrong:
        raise JournalUnusable(
            f"cannot write {path}: {wrong.strerror}. Run as the user who owns it, or name another folder."
        ) from None
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(path, for_writing=True)
        migrate(connection, path)
        sync(folder)
    except BaseException as wrong:
        if connection is not None:
            connection.close()
        if isinstance(wrong, DAMAGE):
            raise explained(wrong, path) from wrong
        raise
    return connection


#: Errors of a damaged database; even the error text of SQLite may be damaged.
DAMAGE = (sqlite3.Error, UnicodeDecodeError)


def explained(wrong: Exception, path: Path) -> JournalUnusable:
    """The error for a problem of SQLite when a database is opened or read, with what to do."""
    name = getattr(wrong, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_NOTADB"):
        why = "it is not a SQLite database. Restore it from a backup, or move it away to start with an empty journal."
    elif name.startswith("SQLITE_CORRUPT") or not isinstance(wrong, sqlite3.Error):
        why = "it is damaged. Run `corral db verify`, and restore it from a backup."
    elif name.startswith("SQLITE_FULL"):
        why = "the disk is full. Free space and start again; acknowledged records are safe."
    elif name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        why = "it cannot be written. Run as the user who owns it, and check that its file system is writable."
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        why = "another program has locked it. Close other programs that have it open."
    else:
        why = "check that the disk works."
    return JournalUnusable(f"{path}: {wrong}: {why}")


# ---- schema --------------------------------------------------------------------------------------------------------


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply new schema changes, each in a transaction of its own."""
    steps = _steps()
    version = schema_version(connection)
    if version > len(steps):
        raise JournalTooNew(
            f"{path} has schema {version}; this version of Corral supports schemas up to {len(steps)}. "
            "Use the version that wrote it, or a later one."
        )
    for number, statements in enumerate(steps[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute("CREATE TABLE IF NOT EXISTS schema (version INTEGER PRIMARY KEY)")
            connection.execute("INSERT INTO schema VALUES (?)", (number,))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def schema_version(connection: sqlite3.Connection) -> int:
    """The schema version; 0 for an empty database. Raises if it has tables of another program."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "schema" in tables:
        version: int = connection.execute("SELECT coalesce(max(version), 0) FROM schema").fetchone()[0]
        return version
    if tables:
        raise JournalUnusable("the database is not a journal of Corral. Name another folder for the data.")
    return 0


def _steps() -> list[list[str]]:
    folder = resources.files("corral.store.sqlite") / "schema"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [list(statements_of(file.read_text(encoding="utf-8"))) for file in files]


def statements_of(script: str) -> Iterator[str]:
    """The statements of a script, one by one (``executescript`` would commit implicitly)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# ---- readers -------------------------------------------------------------------------------------------------------


class SqliteReaders:
    """A pool of connections for reading; they see the last commit and block no writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise JournalUnusable("the journal is closed")
            if self._idle:
                return self._idle.pop()
        return connect(self._path)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()
