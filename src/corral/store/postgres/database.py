"""The PostgreSQL database: connections as the journal needs them, the newest schema, and a pool for readers.

Knows settings of sessions and schema versions. Knows nothing of what the tables mean. Changes of the schema are files
in ``schema/``, applied in order and only forward. Addresses are shown without their passwords.
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
from corral.store.postgres.troubles import Silent, trouble
from corral.wire.address import shown

CONNECT_S = 5.0
#: For how long a look-up may wait without hearing from the database; upkeep of large tables may wait longer.
LOOK_UP_S, UPKEEP_S = 5.0, 600.0
#: Marks our sessions in pg_stat_activity; the one that writes has a name of its own.
NAME, WRITER_NAME = "corral", "corral journal"
#: A peer that does not answer for so long is gone, by the operating system's judgement.
_SILENCE_MS = 5_000
#: For how long a transaction may wait for us: what is folded into one takes its time, and whoever takes over does not
#: wait for this.
_IDLE_MS = "60000"
_LOOK_S = 0.1  # how often whoever waits sees whether it still may
#: The database gives up before we do, where it can: then its answer is heard, and the connection can be kept. First on
#: locks, so that it is said that it was a lock.
_LOCK_OF_SILENCE, _OF_SILENCE = 0.7, 0.85
_KEPT = 8
_MIGRATION_LOCK = 0x636F7272616C  # any number, as long as nobody else uses it


T = TypeVar("T")


class _Bounded(psycopg.Connection[TupleRow]):
    """A connection that waits no longer than ``silence_s`` without hearing anything, whatever the other side or the
    network does, and no longer at all once ``is_abandoned`` is set, by whichever thread. Then it is closed."""

    silence_s = LOOK_UP_S
    is_abandoned = False
    heard_s: float | None = None  # of a wait that goes on: when anything was last heard, by the clock of this process

    def wait(self, gen: Generator[Any, Any, T], *given: Any, **named: Any) -> T:
        del given, named
        try:
            return super().wait(self._heard(gen), _LOOK_S)
        except Silent:
            self.pgconn.finish()
            raise

    def _heard(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The driver comes back here as often as it is told, with what the socket is ready for: nothing, if silent."""
        heard_s = self.heard_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now_s = time.monotonic()
                heard_s = self.heard_s = now_s if ready else heard_s
                if self.is_abandoned:
                    raise Silent("nobody waits for its answer any more")
                if now_s - heard_s > self.silence_s:
                    raise Silent(f"no answer for {self.silence_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self.heard_s = None


class Link:
    """A connection in which nothing begins or commits by itself, and ``?`` stands where values go."""

    def __init__(self, raw: _Bounded) -> None:
        self.raw = raw

    @contextmanager
    def patiently(self, seconds: float = UPKEEP_S) -> Iterator[None]:
        """For upkeep of large tables, during which nothing may be heard for long."""
        usual_s = self.raw.silence_s
        _bound(self, seconds)
        try:
            yield
        finally:
            if not self.raw.closed:
                _bound(self, usual_s)

    @property
    def is_quiet(self) -> bool:
        """Nothing has come that nobody asked for, such as the end of the connection."""
        if self.raw.closed:
            return False
        look = select.poll()
        look.register(self.raw.fileno(), select.POLLIN)
        return not look.poll(0)

    def abandon(self) -> None:
        """From any thread: whoever waits on this connection waits no more, and it is closed."""
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


def connect(address: str, name: str = NAME, *, silence_s: float = UPKEEP_S, connect_s: float = CONNECT_S) -> Link:
    """A connection, or a complaint that says what to do. Every wait on it ends: see ``_Bounded``."""
    try:
        raw = _Bounded.connect(
            address,
            autocommit=True,
            application_name=name,
            connect_timeout=max(2, round(connect_s)),  # a driver's second is its least, and taken for two
            keepalives_idle=2,
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=_SILENCE_MS,
        )
    except psycopg.Error as wrong:
        raise unreachable(address, wrong) from None
    try:
        _bound(link := Link(raw), silence_s)
    except BaseException as wrong:
        raw.close()
        raise trouble(address, wrong) or wrong from None
    return link


def _bound(link: Link, silence_s: float) -> None:
    """Waits on both sides end. The database looks whether anybody still waits for what it does (from version 14 on)."""
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
    """What to raise for what the driver has raised."""
    return trouble(address, wrong) or wrong


def open_database(address: str, silence_s: float = UPKEEP_S) -> Link:
    """The connection of the writer, on a database of the newest schema. Its commits are durable when they return."""
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


def make_durable(link: Link) -> None:
    """What is committed in this session is on disk when that returns."""
    link.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )


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

    def __init__(self, address: str, silence_s: float = LOOK_UP_S) -> None:
        self._address, self._silence_s = address, silence_s
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Link]:
        link = self._take()
        try:
            yield link
        except psycopg.Error as wrong:
            if link.raw.closed:
                self._let_go()  # the others are no better
            raise unreachable(self._address, wrong) from wrong
        finally:
            self._give_back(link)

    def _take(self) -> Link:
        with self._lock:
            if self._closed:
                raise JournalUnusable("the journal is closed")
            while self._idle:
                link = self._idle.pop()
                if link.is_quiet:
                    return link
                link.close()
        return connect(self._address, silence_s=self._silence_s)

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
