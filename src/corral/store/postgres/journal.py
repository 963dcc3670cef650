"""The journal on PostgreSQL: takes the lease, begins an epoch, writes records and projections.

What all journals share is in ``sql.journal``. A lost connection is opened again as long as the lease allows; after
that, or when the database refuses, nothing more is accepted and the lease is released.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg

from corral.store.journal import JournalBroken, JournalFailed, JournalHead, JournalUnusable, Record
from corral.store.postgres import images
from corral.store.postgres.database import WRITER_NAME, PostgresConnection, connect, make_durable, open_database
from corral.store.postgres.errors import trouble
from corral.store.postgres.leader_lease import LEASE_S, LeaderLease, begin_epoch, give_back, now_s
from corral.store.postgres.lookup import PostgresLookup
from corral.store.postgres.reader import PostgresReader
from corral.store.postgres.rows import put_pairs, put_records, rebuild, tables_of
from corral.store.projection import fold
from corral.store.sql.connection import SqlConnection
from corral.store.sql.journal import SqlJournal, check_end
from corral.store.sql.record_reader import whole_journal
from corral.store.sql.writer import JournalWriter, fenced
from corral.wire.address import shown

_WHEN_LOST = "Check that the database works and can be reached, then start again."
#: Part of the lease for which the writer waits for the database, or reconnects, before it gives up leadership.
_PATIENCE = 0.6
_UPKEEP_S = _HOPELESS_S = 60.0
_RETRY_S = 0.05
_CLOSE_S = 5.0


class PostgresJournal(SqlJournal):
    """Implements ``Journal``; must be closed. ``holder``: the id of this server; a server may use the id of an earlier
    one only if that one has certainly ended. ``url``: of this server. ``folder``: for archives."""

    _reader: PostgresReader

    def __init__(
        self, address: str, *, holder: str = "", url: str = "", lease_s: float = LEASE_S, folder: Path | None = None
    ) -> None:
        self.address, self.folder = address, folder or Path.cwd()
        holder, self._patience_s = holder or uuid.uuid4().hex, lease_s * _PATIENCE
        self._link = open_database(address, self._patience_s)
        try:
            begun = begin_epoch(self._link, holder, url, lease_s)
            self._epoch, self._head = begun.epoch, begun.head
            check_end(self._link, begun.head, shown(address), _WHAT_TO_DO)
            images.drop_after(self._link, begun.head.seq)
            self._reader = PostgresReader(address)
            self._tables, self._session = tables_of(self._link), self._link.raw.info.backend_pid
        except BaseException as wrong:
            give_back(self._link, holder)
            self._link.close()
            raise trouble(address, wrong) or wrong from wrong
        self._writer = JournalWriter(
            self._head, self._commit, _remember_nothing, (psycopg.OperationalError,), _WHEN_LOST
        )
        self._lease = LeaderLease(address, holder, begun, lease_s, self._writer.fail, self._stuck_s)
        self._writer.lost.add_done_callback(self._let_go)
        self._enter_older()

    @property
    def lost(self) -> Future[None]:
        """Fails when nothing more can be written, for any reason."""
        return self._writer.lost

    @property
    def lease(self) -> LeaderLease:
        """The lease that gives this server the right to write."""
        return self._lease

    @property
    def leading_for_s(self) -> float:
        """How long this server leads without another renewal."""
        return self._lease.until_s - now_s()

    @property
    def committed_s_ago(self) -> float:
        """Seconds since the last commit."""
        return time.monotonic() - self._writer.committed_s

    def _stuck_s(self) -> float:
        """How long the current transaction has waited for an answer of the database. A transaction that takes far too
        long counts with its whole duration."""
        began_s, heard_s = self._writer.began_s, self._link.raw.heard_s
        now = time.monotonic()
        if began_s is None:
            return 0.0
        if now - began_s > _HOPELESS_S:
            return now - began_s
        return 0.0 if heard_s is None else now - max(began_s, heard_s)

    def _let_go(self, lost: Future[None]) -> None:
        """Nothing more will be written: stop waiting for the database, and let another server lead."""
        del lost
        self._link.abandon()
        self._lease.give_up()

    @property
    def lookup(self) -> PostgresLookup:
        return self._reader.lookup

    # ---- maintenance -------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Build the projections again from all records, archived ones too. Nothing else is written meanwhile."""

        def rebuild_all() -> None:
            with self._link.patiently(), self._transaction():
                rebuild(self._link, whole_journal(self._link, self.folder))
            self._tables = tables_of(self._link)

        self._writer.run(rebuild_all).result()
        self._enter_older()

    # ---- in the thread of the writer ---------------------------------------------------------------------------

    def _own_connection(self) -> SqlConnection:
        return self._link

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._link.transaction():
            if self._link.execute("SELECT epoch FROM writer FOR UPDATE").fetchone() != (self._epoch,):
                raise fenced(self._epoch)
            yield

    def _put_pairs(self, pairs: Sequence[tuple[str, int]]) -> None:
        put_pairs(self._link, pairs)

    def _maintenance(self) -> AbstractContextManager[None]:
        return self._link.patiently(_UPKEEP_S)

    def _together(self) -> AbstractContextManager[object]:
        return self._link.raw.pipeline()

    def _commit(self, head: JournalHead, records: Sequence[Record]) -> None:
        """Write records and projections. If the connection is lost, reconnect, look up whether the transaction was
        committed, and if not, write it again."""
        until_s = time.monotonic() + self._patience_s
        try:
            while True:
                try:
                    return self._transact(head, records)
                except psycopg.Error:
                    if not self._link.raw.closed or self._writer.failure is not None:
                        raise
                if self._is_written(head, records[-1], until_s):
                    return None
        except psycopg.Error as wrong:
            raise trouble(self.address, wrong) or wrong from wrong

    def _transact(self, head: JournalHead, records: Sequence[Record]) -> None:
        """One transaction: two round trips to the database, and one for every row that is not cached."""
        link, last = self._link, records[-1]
        try:
            with link.raw.pipeline():
                link.execute("BEGIN")
                writer = link.execute(
                    "UPDATE writer SET seq = ?, hash = ? WHERE epoch = ? AND seq = ?",
                    (last.seq, last.hash, self._epoch, head.seq),
                )
            if writer.rowcount != 1:
                raise fenced(self._epoch)
            with link.raw.pipeline():
                put_records(link, records)
                fold(self._tables.tables, records)
                self._tables.flush()
                link.execute("COMMIT")
        except BaseException:
            link.roll_back()
            raise

    def _is_written(self, head: JournalHead, last: Record, until_s: float) -> bool:
        """Reconnect, and return whether the transaction of the lost connection was committed. Its session is terminated
        first, and the row of the writer is locked, so that it cannot be committed later."""
        now = self._end_of_journal(until_s)
        self._tables = tables_of(self._link)
        if now not in (head, JournalHead(last.seq, last.hash)):
            why = f"{shown(self.address)} ends with record {now.seq}, which this server did not write"
            raise JournalBroken(f"{why}. {_WHAT_TO_DO}")
        return now.seq == last.seq

    def _end_of_journal(self, until_s: float) -> JournalHead:
        while True:
            try:
                self._link = connect(self.address, WRITER_NAME, silence_s=self._patience_s, connect_s=1)
                return self._place(self._link)
            except (psycopg.Error, JournalUnusable):
                self._link.close()
                if time.monotonic() > until_s or self._writer.failure is not None:
                    raise
                time.sleep(_RETRY_S)

    def _place(self, link: PostgresConnection) -> JournalHead:
        """The end of the journal, once no other session is writing."""
        make_durable(link)
        link.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid = ? AND pid <> pg_backend_pid() AND application_name = ? AND datname = current_database()",
            (self._session, WRITER_NAME),
        )
        self._session = link.raw.info.backend_pid
        link.execute("UPDATE leader SET session = pg_backend_pid() WHERE epoch = ?", (self._epoch,))
        with link.transaction():
            row = link.execute("SELECT seq, hash FROM writer WHERE epoch = ? FOR UPDATE", (self._epoch,)).fetchone()
        if row is None:
            raise fenced(self._epoch)
        return JournalHead(row[0], row[1])

    # ---- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what was appended and release the lease, if the database answers in time."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._writer.close(_CLOSE_S):
            self._writer.fail(JournalFailed("the journal was closed while the database did not answer"))
            self._writer.close(_CLOSE_S)
        self._lease.end()
        self._reader.close()
        self._link.close()


_WHAT_TO_DO = "Run `corral db verify`, and restore the database from a backup."


def _remember_nothing(head: JournalHead) -> None:
    """The end is not stored a second time outside the database."""
    del head
