"""The journal on PostgreSQL: takes the lease, begins an epoch, writes records and what is folded from them.

What holds for every journal is in ``sql.journal``. A lost connection is made again as long as the lease allows; after
that, or when the database refuses, nothing more is accepted and the lease is given back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import psycopg

from corral.store.journal import Head, JournalBroken, JournalFailed, JournalUnusable, Record
from corral.store.postgres import images
from corral.store.postgres.database import WRITER_NAME, Link, connect, make_durable, open_database
from corral.store.postgres.lease import LEASE_S, Lease, begin_epoch, give_back, now_s
from corral.store.postgres.lookup import PostgresLookup
from corral.store.postgres.reader import PostgresReader
from corral.store.postgres.removal import checked, note_archive, remove_some
from corral.store.postgres.rows import put_pairs, put_records, rebuild, tables_of
from corral.store.postgres.troubles import trouble
from corral.store.projection import fold
from corral.store.sql.by_job import enter_some, has_older
from corral.store.sql.connection import Connection
from corral.store.sql.journal import SqlJournal, check_end
from corral.store.sql.records import Archived, whole_journal
from corral.store.sql.writer import Writer, fenced
from corral.wire.address import shown

_WHEN_LOST = "See that the database is in order and can be reached, then start again."
#: Of a lease: for so long the writer waits for the database, or tries to reach it again, before it gives the lead up.
_PATIENCE = 0.6
_UPKEEP_S = _HOPELESS_S = 60.0
_RETRY_S = 0.05
_CLOSE_S = 5.0


class PostgresJournal(SqlJournal):
    """Implements ``Journal``. To be closed when done. ``holder`` is who opens it: only a server that is certain to have
    replaced the earlier one of that name may use it again. ``url`` is where others find it. ``folder`` has archives."""

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
        self._writer = Writer(self._head, self._commit, _remember_nothing, (psycopg.OperationalError,), _WHEN_LOST)
        self._lease = Lease(address, holder, begun, lease_s, self._writer.fail, self._stuck_s)
        self._writer.lost.add_done_callback(self._let_go)
        self._enter_older()

    @property
    def lost(self) -> Future[None]:
        """Fails when nothing more can be written, for whatever reason."""
        return self._writer.lost

    @property
    def lease(self) -> Lease:
        """The right to write, as it is renewed."""
        return self._lease

    @property
    def leading_for_s(self) -> float:
        """For how long this server leads without another renewal."""
        return self._lease.until_s - now_s()

    @property
    def committed_s_ago(self) -> float:
        """How long ago something was last written."""
        return time.monotonic() - self._writer.committed_s

    def _stuck_s(self) -> float:
        """For how long the transaction at hand has been waiting for the database without hearing from it; what takes
        far longer than any should counts as a whole, whatever it waits for."""
        began_s, heard_s, now = self._writer.began_s, self._link.raw.heard_s, time.monotonic()
        if began_s is None:
            return 0.0
        if now - began_s > _HOPELESS_S:
            return now - began_s
        return 0.0 if heard_s is None else now - max(began_s, heard_s)

    def _let_go(self, lost: Future[None]) -> None:
        """Nothing more will be written: nobody waits for the database any more, and another may lead."""
        del lost
        self._link.abandon()
        self._lease.give_up()

    @property
    def lookup(self) -> PostgresLookup:
        return self._reader.lookup

    # ---- upkeep ------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Make the projections anew from all records, archived ones too. Nothing is written meanwhile."""

        def anew() -> None:
            with self._link.patiently(), checked(self._link, self._epoch):
                rebuild(self._link, whole_journal(self._link, self.folder))
            self._tables = tables_of(self._link)

        self._writer.run(anew).result()
        self._enter_older()

    # ---- in the thread of the writer ---------------------------------------------------------------------------

    def _own_connection(self) -> Connection:
        return self._link

    def _note_archive(self, archived: Archived) -> None:
        with self._link.patiently(_UPKEEP_S):
            note_archive(self._link, self._epoch, archived)

    def _remove_some(self, upto: int) -> None:
        with self._link.patiently(_UPKEEP_S):
            remove_some(self._link, self._epoch, upto)

    def _enter_some(self) -> bool:
        with checked(self._link, self._epoch):
            enter_some(self._link, lambda pairs: put_pairs(self._link, pairs))
            return has_older(self._link)

    def _commit(self, head: Head, records: Sequence[Record]) -> None:
        """Write records and what is folded from them. A connection that is lost in the middle is made again: whether
        the transaction was committed is then looked up, and if not, it is written again."""
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

    def _transact(self, head: Head, records: Sequence[Record]) -> None:
        """In one transaction: in two trips to the database, and one for every row that is not at hand."""
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

    def _is_written(self, head: Head, last: Record, until_s: float) -> bool:
        """On a new connection: how the transaction ended whose connection was lost. Its session is ended first, and the
        row of the writer is waited for, so that nothing of it can still happen afterwards."""
        now = self._end_of_journal(until_s)
        self._tables = tables_of(self._link)
        if now not in (head, Head(last.seq, last.hash)):
            raise JournalBroken(f"{shown(self.address)} ends with record {now.seq}, which nobody wrote. {_WHAT_TO_DO}")
        return now.seq == last.seq

    def _end_of_journal(self, until_s: float) -> Head:
        while True:
            try:
                self._link = connect(self.address, WRITER_NAME, silence_s=self._patience_s, connect_s=1)
                return self._place(self._link)
            except (psycopg.Error, JournalUnusable):
                self._link.close()
                if time.monotonic() > until_s or self._writer.failure is not None:
                    raise
                time.sleep(_RETRY_S)

    def _place(self, link: Link) -> Head:
        """Where the journal ends, once nobody else is writing."""
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
        return Head(row[0], row[1])

    # ---- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what was handed in and give the lease back, as far as the database lets that happen in time."""
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


def _remember_nothing(head: Head) -> None:
    """There is no second account of the end outside the database."""
    del head
