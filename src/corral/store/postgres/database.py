"""The PostgreSQL database: connections as the journal needs them, the newest schema, and a pool for readers.

Knows session settings and schema versions. Knows nothing about what the tables mean. Schema changes are files in
``schema/``, applied in order and only forward. Addresses are shown without their passwords.
"""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow

from corral.store.journal import JournalTooNew, JournalUnusable
from corral.store.postgres.errors import DatabaseTimeout, trouble
from corral.wire.address import shown

CONNECT_S = 5.0
#: How long a lookup waits for an answer of the database; maintenance of large tables may wait longer.
LOOK_UP_S, UPKEEP_S = 5.0, 600.0
#: Names of our sessions in pg_stat_activity; the writer has a name of its own.
NAME, WRITER_NAME = "corral", "corral journal"
#: TCP user timeout: a peer that does not answer for this time is considered gone.
_SILENCE_MS = 5_000
#: How long a transaction may be idle: folding records takes time. A server that takes over does not wait for this.
_IDLE_MS = "60000"
_LOOK_S = 0.1  # how often a waiting call checks whether it was abandoned
#: The timeouts of the database are shorter than ours: then it answers with an error, and the connection stays usable.
#: The lock timeout is the shortest, so that the error names the lock.
_LOCK_OF_SILENCE, _OF_SILENCE = 0.7, 0.85
_KEPT = 8
_MIGRATION_LOCK = 0x636F7272616C  # an arbitrary number


T = TypeVar("T")


class _Bounded(psycopg.Connection[TupleRow]):
    """A connection that waits at most ``silence_s`` without receiving anything, whatever the other side or the network
    does, and stops waiting when any thread sets ``is_abandoned``. Then it is closed."""

    silence_s = LOOK_UP_S
    is_abandoned = False
    heard_s: float | None = None  # during a wait: when data was last received, by the monotonic clock

    def wait(self, gen: Generator[Any, Any, T], *given: Any, **named: Any) -> T:
        del given, named
        try:
            return super().wait(self._heard(gen), _LOOK_S)
        except DatabaseTimeout:
            self.pgconn.finish()
            raise

    def _heard(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The driver returns here at every interval, with the state of the socket: nothing if no data came."""
        heard_s = self.heard_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now_s = time.monotonic()
                heard_s = self.heard_s = now_s if ready else heard_s
                if self.is_abandoned:
                    raise DatabaseTimeout("the request was abandoned")
                if now_s - heard_s > self.silence_s:
                    raise DatabaseTimeout(f"no answer for {self.silence_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self.heard_s = None


class PostgresConnection:
    """A connection without implicit transactions, with ``?`` as the placeholder of values."""

    def __init__(self, raw: _Bounded) -> None:
        self.raw = raw

    @contextmanager
    def patiently(self, seconds: float = UPKEEP_S) -> Iterator[None]:
        """For maintenance of large tables, during which the database may not answer for long."""
        usual_s = self.raw.silence_s
        _bound(self, seconds)
        try:
            yield
        finally:
            if not self.raw.closed:
                _bound(self, usual_s)

    @property
    def is_quiet(self) -> bool:
        """Whether there is no unexpected data, such as the end of the connection."""
        if self.raw.closed:
            return False
        look = select.poll()
        look.register(self.raw.fileno(), select.POLLIN)
        return not look.poll(0)

    def abandon(self) -> None:
        """From any thread: end all waiting on this connection, and close it."""
        self.raw.is_abandoned = True

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
        """Roll back. The database itself rolls back the transaction of a lost connection."""
        if not self.raw.closed:
            try:
                self.execute("ROLLBACK")
            except psycopg.Error:
                self.raw.close()

    def close(self) -> None:
        self.raw.close()


def marked(statement: str) -> bytes:
    """A statement with the placeholders of the driver."""
    return statement.replace("?", "%s").encode()


def connect(
    address: str, name: str = NAME, *, silence_s: float = UPKEEP_S, connect_s: float = CONNECT_S
) -> PostgresConnection:
    """A connection; an error says what to do. Every wait on it is bounded: see ``_Bounded``."""
    try:
        raw = _Bounded.connect(
            address,
            autocommit=True,
            application_name=name,
            connect_timeout=max(2, round(connect_s)),  # the driver takes 1 as 2
            keepalives_idle=2,
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=_SILENCE_MS,
        )
    except psycopg.Error as wrong:
        raise unreachable(address, wrong) from None
    try:
        _bound(link := PostgresConnection(raw), silence_s)
    except BaseException as wrong:
        raw.close()
        raise trouble(address, wrong) or wrong from None
    return link


def _bound(link: PostgresConnection, silence_s: float) -> None:
    """Bound waits on both sides. The database checks whether the client is still connected (since version 14)."""
    link.raw.silence_s = silence_s
    given_up_ms, lock_ms = (str(int(silence_s * part * 1000)) for part in (_OF_SILENCE, _LOCK_OF_SILENCE))
    settings = {
        "client_min_messages": "error",
        "lock_timeout": lock_ms,
        "statement_timeout": given_up_ms,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "tcp_user_timeout": str(_SILENCE_MS),
        "client_connection_check_interval": "1000",
    }
    link.raw.execute(
        "SELECT set_config(name, %s::jsonb ->> name, false) FROM pg_settings WHERE name = ANY(%s)",
        (json.dumps(settings), list(settings)),
    )


def unreachable(address: str, wrong: Exception) -> Exception:
    """The exception to raise for one of the driver."""
    return trouble(address, wrong) or wrong


def open_database(address: str, silence_s: float = UPKEEP_S) -> PostgresConnection:
    """The connection of the writer, with the newest schema. Its commits are durable when they return."""
    link = connect(address, WRITER_NAME, silence_s=silence_s)
    try:
        with link.patiently():
            migrate(link, address)
        make_durable(link)
    except psycopg.Error as wrong:
        link.close()
        raise unreachable(address, wrong) from wrong
    except BaseException:
        link.close()
        raise
    return link


def make_durable(link: PostgresConnection) -> None:
    """Make commits of this session durable when they return."""
    link.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )


# ---- schema --------------------------------------------------------------------------------------------------------


def migrate(link: PostgresConnection, address: str) -> None:
    """Apply new schema changes, all or nothing; one server at a time."""
    steps = _steps()
    version = schema_version(link, address)
    if version < len(steps):
        with link.transaction():
            link.execute("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
            version = schema_version(link, address)  # another server may have been faster
            link.execute("CREATE TABLE IF NOT EXISTS schema (version integer PRIMARY KEY)")
            for number, script in enumerate(steps[version:], start=version + 1):
                link.raw.execute(script.encode())
                link.execute("INSERT INTO schema VALUES (?)", (number,))
    if version > len(steps):
        raise JournalTooNew(
            f"{shown(address)} has schema {version}; this version of Corral supports schemas up to {len(steps)}. "
            "Use the version that wrote it, or a later one."
        )


def schema_version(link: PostgresConnection, address: str) -> int:
    """The schema version; 0 for an empty database. Raises if it has tables of another program."""
    rows = link.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
    tables = {name for (name,) in rows}
    if "schema" in tables:
        found = link.execute("SELECT coalesce(max(version), 0) FROM schema").fetchone()
        assert found is not None
        return int(found[0])
    if tables:
        raise JournalUnusable(
            f"{shown(address)} has tables of another program. Create a database for Corral alone and use that one."
        )
    return 0


def _steps() -> list[str]:
    folder = resources.files("corral.store.postgres") / "schema"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [file.read_text(encoding="utf-8") for file in files]


# ---- readers -------------------------------------------------------------------------------------------------------


class PostgresReaders:
    """A pool of connections for reading; they see the last commit and block no writer."""

    def __init__(self, address: str, silence_s: float = LOOK_UP_S) -> None:
        self._address = address
        self._silence_s = silence_s
        self._idle: list[PostgresConnection] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        link = self._take()
        try:
            yield link
        except psycopg.Error as wrong:
            if link.raw.closed:
                self._close_idle()  # the others are probably broken, too
            raise unreachable(self._address, wrong) from wrong
        finally:
            self._give_back(link)

    def _take(self) -> PostgresConnection:
        with self._lock:
            if self._closed:
                raise JournalUnusable("the journal is closed")
            while self._idle:
                link = self._idle.pop()
                if link.is_quiet:
                    return link
                link.close()
        return connect(self._address, silence_s=self._silence_s)

    def _give_back(self, link: PostgresConnection) -> None:
        if not link.raw.closed and link.raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            link.roll_back()
        with self._lock:
            if self._closed or link.raw.closed or len(self._idle) >= _KEPT:
                link.close()
            else:
                self._idle.append(link)

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def close(self) -> None:
        self._closed = True
        self._close_idle()
