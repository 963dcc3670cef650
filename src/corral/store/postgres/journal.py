"""The journal on PostgreSQL: takes the lease, begins an epoch, numbers and chains what is handed in.

Handing in costs microseconds and is done from one thread; a thread of its own writes. Reading is for any thread. A lost
connection is a failed write: nothing more is accepted, and the lease is left to run out.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import takewhile
from pathlib import Path

import psycopg

from corral.store.archive import ArchiveRefused, digest_of, write_archive
from corral.store.chain import chain, why_not_next
from corral.store.journal import Entry, Head, JournalBroken, JournalFailed, Record, StoredImage, all_records
from corral.store.postgres import images
from corral.store.postgres.database import Link, open_database, unreachable
from corral.store.postgres.lease import LEASE_S, Lease, begin_epoch, give_back
from corral.store.postgres.lookup import PostgresLookup
from corral.store.postgres.reader import PostgresReader
from corral.store.postgres.removal import checked, note_archive, remove_some
from corral.store.postgres.rows import put_records, rebuild, tables_of
from corral.store.projection import fold
from corral.store.sql.records import RECORD, Archived, anchor_in, archives_in, whole_journal
from corral.store.sql.writer import Writer, fenced
from corral.wire import codec
from corral.wire.address import shown

_WHEN_LOST = "See that the database is in order and can be reached, then start again."


class PostgresJournal:
    """Implements ``Journal``. To be closed when done. ``holder`` is who opens it: only a server that is certain to have
    replaced the earlier one of that name may use it again. ``url`` is where others find it. ``folder`` has archives."""

    def __init__(
        self, address: str, *, holder: str = "", url: str = "", lease_s: float = LEASE_S, folder: Path | None = None
    ) -> None:
        self.address, self.folder = address, folder or Path.cwd()
        holder = holder or uuid.uuid4().hex
        self._link = open_database(address)
        try:
            begun = begin_epoch(self._link, holder, url, lease_s)
            self._epoch, self._head = begun.epoch, begun.head
            _check_end(self._link, begun.head, address)
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
        self._is_closed = False

    @property
    def lost(self) -> Future[None]:
        """Fails when nothing more can be written, for whatever reason."""
        return self._writer.lost

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def head(self) -> Head:
        return self._head

    def append(self, entries: Sequence[Entry]) -> Future[Head]:
        future: Future[Head] = Future()
        future.set_running_or_notify_cancel()  # what was handed in cannot be taken back
        failure = JournalFailed("the journal is closed") if self._is_closed else self._writer.failure
        if failure is not None:
            future.set_exception(failure)
            return future
        records = chain(self._head, self._epoch, codec.FORMAT, entries)
        if records:
            self._head = Head(records[-1].seq, records[-1].hash)
        self._writer.append(future, records)
        return future

    def read(self, after: int, limit: int) -> list[Record]:
        return self._reader.read(after, limit)

    @property
    def lookup(self) -> PostgresLookup:
        return self._reader.lookup

    def save_image(self, image: StoredImage) -> None:
        """Waits until the records that the image was made of are durable: it must never be ahead of them."""
        assert image.seq <= self._head.seq, "an image of records that were never handed in"
        self._writer.run(lambda: None).result()
        self._reader.save_image(image)

    def newest_image(self) -> StoredImage | None:
        return self._reader.newest_image()

    def image_seqs(self) -> list[int]:
        """The records after which there are images, newest first."""
        return self._reader.image_seqs()

    # ---- upkeep ------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Make the projections anew from all records, archived ones too. Nothing is written meanwhile."""

        def anew() -> None:
            with checked(self._link, self._epoch):
                rebuild(self._link, whole_journal(self._link, self.folder))
            self._tables = tables_of(self._link)

        self._writer.run(anew).result()

    def archive(self, upto: int, path: Path | None = None) -> Path:
        """Move the records up to that one into a file. Other writing goes on meanwhile; call from any thread but the
        one that appends. Every image that is kept must still have all records after it: never beyond the oldest."""
        kept = self._reader.image_seqs()
        if not kept or upto > min(kept):
            newest = f"the oldest image is of record {min(kept)}" if kept else "there is no image yet"
            raise ArchiveRefused(f"records up to {upto} cannot be archived: {newest}, and a restart needs all after it")
        for archived in self._writer.run(lambda: archives_in(self._link)).result():
            self._remove(archived.last_seq)  # what an earlier call did not finish
        anchor = self._reader.anchor()
        if upto <= anchor.seq:
            raise ArchiveRefused(f"records up to {anchor.seq} are archived already")
        path = path or self.folder / "archive" / f"{anchor.seq + 1:012}-{upto:012}.jsonl.gz"
        records = takewhile(lambda record: record.seq <= upto, all_records(self, anchor.seq, 2000))
        end = write_archive(path, anchor, records)
        archived = Archived(end.seq, end.hash, anchor.seq + 1, str(path.absolute()), digest_of(path))
        self._writer.run(lambda: note_archive(self._link, self._epoch, archived)).result()
        self._remove(end.seq)
        return path

    def _remove(self, upto: int) -> None:
        while self._reader.anchor().seq < upto:
            self._writer.run(lambda: remove_some(self._link, self._epoch, upto)).result()

    # ---- in the thread of the writer ---------------------------------------------------------------------------

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


def _check_end(link: Link, head: Head, address: str) -> None:
    """Whether the last record is the one that the row of the writer names, and follows the one before it.

    The whole chain is the business of ``verify``, which takes longer.
    """
    rows = link.execute(f"SELECT {RECORD} FROM records ORDER BY seq DESC LIMIT 2").fetchall()
    last, anchor = [Record(*row) for row in rows], anchor_in(link)
    if last:
        before = Head(last[1].seq, last[1].hash) if len(last) > 1 else anchor
        wrong = why_not_next(before, last[0])
        if wrong:
            raise JournalBroken(f"{shown(address)}: {wrong}. {_WHAT_TO_DO}")
    end = Head(last[0].seq, last[0].hash) if last else anchor
    if end != head:
        raise JournalBroken(
            f"{shown(address)} ends with record {end.seq}, and should end with {head.seq}. {_WHAT_TO_DO}"
        )


_WHAT_TO_DO = "Run `corral db verify`, and restore the database from a backup."


def _explained(address: str, wrong: BaseException) -> BaseException:
    return unreachable(address, wrong) if isinstance(wrong, psycopg.OperationalError) else wrong


def _remember_nothing(head: Head) -> None:
    """There is no second account of the end outside the database."""
    del head
