"""The journal on PostgreSQL: takes the lease, begins an epoch, writes records and what is folded from them.

What holds for every journal is in ``sql.journal``. A lost connection is a failed write: nothing more is accepted, and
the lease is left to run out.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import psycopg

from corral.store.journal import Head, Record
from corral.store.postgres import images
from corral.store.postgres.database import open_database, unreachable
from corral.store.postgres.lease import LEASE_S, Lease, begin_epoch, give_back
from corral.store.postgres.lookup import PostgresLookup
from corral.store.postgres.reader import PostgresReader
from corral.store.postgres.removal import checked, note_archive, remove_some
from corral.store.postgres.rows import put_records, rebuild, tables_of
from corral.store.projection import fold
from corral.store.sql.connection import Connection
from corral.store.sql.journal import SqlJournal, check_end
from corral.store.sql.records import Archived, whole_journal
from corral.store.sql.writer import Writer, fenced
from corral.wire.address import shown

_WHEN_LOST = "See that the database is in order and can be reached, then start again."


class PostgresJournal(SqlJournal):
    """Implements ``Journal``. To be closed when done. ``holder`` is who opens it: only a server that is certain to have
    replaced the earlier one of that name may use it again. ``url`` is where others find it. ``folder`` has archives."""

    _reader: PostgresReader

    def __init__(
        self, address: str, *, holder: str = "", url: str = "", lease_s: float = LEASE_S, folder: Path | None = None
    ) -> None:
        self.address, self.folder = address, folder or Path.cwd()
        holder = holder or uuid.uuid4().hex
        self._link = open_database(address)
        try:
            begun = begin_epoch(self._link, holder, url, lease_s)
            self._epoch, self._head = begun.epoch, begun.head
            check_end(self._link, begun.head, shown(address), _WHAT_TO_DO)
            self._link.execute(f"SET idle_in_transaction_session_timeout = {int(lease_s * 1000)}")
            images.drop_after(self._link, begun.head.seq)
            self._reader = PostgresReader(address)
            self._tables = tables_of(self._link)
        except BaseException as wrong:
            give_back(self._link, holder)
            self._link.close()
            raise _explained(address, wrong) from wrong
        self._writer = Writer(self._head, self._commit, _remember_nothing, (psycopg.OperationalError,), _WHEN_LOST)
        self._lease = Lease(address, holder, begun, lease_s, self._writer.fail)

    @property
    def lost(self) -> Future[None]:
        """Fails when nothing more can be written, for whatever reason."""
        return self._writer.lost

    @property
    def lookup(self) -> PostgresLookup:
        return self._reader.lookup

    # ---- upkeep ------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Make the projections anew from all records, archived ones too. Nothing is written meanwhile."""

        def anew() -> None:
            with checked(self._link, self._epoch):
                rebuild(self._link, whole_journal(self._link, self.folder))
            self._tables = tables_of(self._link)

        self._writer.run(anew).result()

    # ---- in the thread of the writer ---------------------------------------------------------------------------

    def _own_connection(self) -> Connection:
        return self._link

    def _note_archive(self, archived: Archived) -> None:
        note_archive(self._link, self._epoch, archived)

    def _remove_some(self, upto: int) -> None:
        remove_some(self._link, self._epoch, upto)

    def _commit(self, head: Head, records: Sequence[Record]) -> None:
        """Write records and change the projections by them, in one transaction: in two trips to the database, and one
        for every row that is not at hand."""
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

    # ---- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        self._lease.end(self._link)
        self._reader.close()
        self._link.close()


_WHAT_TO_DO = "Run `corral db verify`, and restore the database from a backup."


def _explained(address: str, wrong: BaseException) -> BaseException:
    return unreachable(address, wrong) if isinstance(wrong, psycopg.OperationalError) else wrong


def _remember_nothing(head: Head) -> None:
    """There is no second account of the end outside the database."""
    del head
