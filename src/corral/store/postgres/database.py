"""The PostgreSQL database: connections as the journal needs them, the newest schema, and a pool for readers.

Knows settings of sessions and schema versions. Knows nothing of what the tables mean. Changes of the schema are files
in ``schema/``, applied in order and only forward. Addresses are shown without their passwords.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from corral.store.journal import JournalTooNew, JournalUnusable
from corral.wire.address import shown

CONNECT_S = 5
#: Marks our sessions in pg_stat_activity; the one that writes has a name of its own.
NAME, WRITER_NAME = "corral", "corral journal"
#: A peer that does not answer for so long is gone, by the operating system's judgement.
_SILENCE_MS = 5_000
_KEPT = 8
_MIGRATION_LOCK = 0x636F7272616C  # any number, as long as nobody else uses it


class Link:
    """A connection in which nothing begins or commits by itself, and ``?`` stands where values go."""

    def __init__(self, raw: psycopg.Connection[TupleRow]) -> None:
        self.raw = raw

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[TupleRow]:
        return self.raw.execute(marked(statement), values or None)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise

    def roll_back(self) -> None:
        """What a lost connection had begun is rolled back by the database itself."""
        if not self.raw.closed:
            try:
                self.execute("ROLLBACK")
            except psycopg.Error:
                self.raw.close()

    def close(self) -> None:
        self.raw.close()


def marked(statement: str) -> bytes:
    """A statement in the words of the driver."""
    return statement.replace("?", "%s").encode()


def connect(address: str, name: str = NAME) -> Link:
    """A connection, or a complaint that says what to do."""
    try:
        raw = psycopg.connect(
            address,
            autocommit=True,
            application_name=name,
            connect_timeout=CONNECT_S,
            keepalives_idle=2,
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=_SILENCE_MS,
        )
    except psycopg.Error as wrong:
        raise unreachable(address, wrong) from None
    raw.execute("SET client_min_messages = error")
    return Link(raw)


def unreachable(address: str, wrong: Exception) -> JournalUnusable:
    why = str(wrong).strip().splitlines()
    return JournalUnusable(
        f"the database {shown(address)} cannot be used: {why[0] if why else 'no answer'}. See that it runs, that the "
        "address is right, and that this user may use it."
    )


def open_database(address: str) -> Link:
    """The connection of the writer, on a database of the newest schema. Its commits are durable when they return."""
    link = connect(address, WRITER_NAME)
    try:
        migrate(link, address)
        link.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
        )
    except psycopg.Error as wrong:
        link.close()
        raise unreachable(address, wrong) from wrong
    except BaseException:
        link.close()
        raise
    return link


# ---- schema --------------------------------------------------------------------------------------------------------


def migrate(link: Link, address: str) -> None:
    """Apply what is new, all of it or nothing; one server at a time."""
    steps = _steps()
    version = schema_version(link, address)
    if version < len(steps):
        with link.transaction():
            link.execute("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
            version = schema_version(link, address)  # another may have been quicker
            link.execute("CREATE TABLE IF NOT EXISTS schema (version integer PRIMARY KEY)")
            for number, script in enumerate(steps[version:], start=version + 1):
                link.raw.execute(script.encode())
                link.execute("INSERT INTO schema VALUES (?)", (number,))
    if version > len(steps):
        raise JournalTooNew(
            f"{shown(address)} has schema {version}, and this version of Corral knows schemas up to {len(steps)}. "
            "Use the version that wrote it, or a later one."
        )


def schema_version(link: Link, address: str) -> int:
    """0 for an empty database. One that has tables of somebody else's is not ours to change."""
    rows = link.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
    tables = {name for (name,) in rows}
    if "schema" in tables:
        found = link.execute("SELECT coalesce(max(version), 0) FROM schema").fetchone()
        assert found is not None
        return int(found[0])
    if tables:
        raise JournalUnusable(
            f"{shown(address)} has tables that are not Corral's. Make a database for Corral alone, and name that one."
        )
    return 0


def _steps() -> list[str]:
    folder = resources.files("corral.store.postgres") / "schema"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [file.read_text(encoding="utf-8") for file in files]


# ---- readers -------------------------------------------------------------------------------------------------------


class Readers:
    """Connections for reading, one to whoever reads at the moment; they see the last commit and block nobody."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Link]:
        link = self._take()
        try:
            yield link
        except psycopg.OperationalError as wrong:
            link.close()
            self._let_go()  # the others are no better
            raise unreachable(self._address, wrong) from wrong
        finally:
            self._give_back(link)

    def _take(self) -> Link:
        with self._lock:
            if self._closed:
                raise JournalUnusable("the journal is closed")
            if self._idle:
                return self._idle.pop()
        return connect(self._address)

    def _give_back(self, link: Link) -> None:
        if not link.raw.closed and link.raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            link.roll_back()
        with self._lock:
            if self._closed or link.raw.closed or len(self._idle) >= _KEPT:
                link.close()
            else:
                self._idle.append(link)

    def _let_go(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def close(self) -> None:
        self._closed = True
        self._let_go()
