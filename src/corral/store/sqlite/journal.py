"""The journal on SQLite: takes the lease, begins an epoch, numbers and chains what is handed in.

Handing in costs microseconds and is done from one thread; a thread of its own writes. Reading is for any thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import takewhile
from pathlib import Path

import msgspec

from corral.store.archive import ArchiveRefused, digest_of, write_archive
from corral.store.chain import chain, why_not_next
from corral.store.journal import Entry, Head, JournalBroken, JournalFailed, Record, StoredImage, all_records
from corral.store.projection import fold
from corral.store.sql.records import RECORD, Archived, archives_in, whole_journal
from corral.store.sql.writer import Writer, fenced
from corral.store.sqlite.database import DAMAGE, FILE_NAME, explained, open_database
from corral.store.sqlite.lease import Lease
from corral.store.sqlite.lookup import SqliteLookup
from corral.store.sqlite.reader import SqliteReader
from corral.store.sqlite.rebuild import rebuild
from corral.store.sqlite.removal import note_archive, remove_some
from corral.store.sqlite.rows import put, tables_of
from corral.store.sqlite.sidecar import FILE_NAME as SIDECAR_NAME
from corral.store.sqlite.sidecar import Sidecar, remembered_head
from corral.wire import codec


class SqliteJournal:
    """Implements ``Journal`` in a folder of its own. To be closed when done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lease = Lease(folder)
        try:
            self._connection = open_database(folder)
        except BaseException:
            self._lease.give_back()
            raise
        try:
            self._head = _checked_head(self._connection, folder)
            self._epoch = _begin_epoch(self._connection)
            self._reader = SqliteReader(folder)
            self._reader.images.drop_after(self._head.seq)
            self._tables = tables_of(self._connection)
            self._sidecar = Sidecar(folder)
            self._sidecar.put(self._head)
            self._sidecar.sync()
        except BaseException as wrong:
            self._connection.close()
            self._lease.give_back()
            if isinstance(wrong, DAMAGE):
                raise explained(wrong, folder / FILE_NAME) from wrong
            raise
        todo = "See that the disk is in order and has room, then start again."
        self._writer = Writer(self._head, self._commit, self._sidecar.put, (sqlite3.Error,), todo)
        self._is_closed = False

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
    def lookup(self) -> SqliteLookup:
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
            rebuild(self._connection, whole_journal(self._connection, self.folder))
            self._reader.images.drop_after(self._head.seq)
            self._tables = tables_of(self._connection)

        self._writer.run(anew).result()

    def archive(self, upto: int, path: Path | None = None) -> Path:
        """Move the records up to that one into a file. Other writing goes on meanwhile; call from any thread but the
        one that appends. Every image that is kept must still have all records after it: never beyond the oldest."""
        images = [seq for seq in self._reader.images.seqs() if self._reader.images.load(seq) is not None]
        if not images or upto > min(images):
            newest = f"the oldest image is of record {min(images)}" if images else "there is no image yet"
            raise ArchiveRefused(f"records up to {upto} cannot be archived: {newest}, and a restart needs all after it")
        for archived in self._writer.run(lambda: archives_in(self._connection)).result():
            self._remove(archived.last_seq)  # what an earlier call did not finish
        anchor = self._reader.anchor()
        if upto <= anchor.seq:
            raise ArchiveRefused(f"records up to {anchor.seq} are archived already")
        path = path or self.folder / "archive" / f"{anchor.seq + 1:012}-{upto:012}.jsonl.gz"
        records = takewhile(lambda record: record.seq <= upto, all_records(self, anchor.seq, 2000))
        end = write_archive(path, anchor, records)
        inside = path.is_relative_to(self.folder)
        name = str(path.relative_to(self.folder) if inside else path.absolute())
        archived = Archived(end.seq, end.hash, anchor.seq + 1, name, digest_of(path))
        self._writer.run(lambda: note_archive(self._connection, self._epoch, archived)).result()
        self._remove(end.seq)
        return path

    def _remove(self, upto: int) -> None:
        while self._reader.anchor().seq < upto:
            self._writer.run(lambda: remove_some(self._connection, self._epoch, upto)).result()

    # ---- in the thread of the writer ---------------------------------------------------------------------------

    def _commit(self, head: Head, records: Sequence[Record]) -> None:
        """Write records and change the projections by them, in one transaction."""
        connection, last = self._connection, records[-1]
        connection.execute("BEGIN IMMEDIATE")
        try:
            writer = connection.execute(
                "UPDATE writer SET seq = ?, hash = ? WHERE epoch = ? AND seq = ?",
                (last.seq, last.hash, self._epoch, head.seq),
            )
            if writer.rowcount != 1:
                raise fenced(self._epoch)
            put(connection, f"INSERT INTO records ({RECORD})", [msgspec.structs.astuple(record) for record in records])
            fold(self._tables.tables, records)
            self._tables.flush()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    # ---- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        self._reader.close()
        self._connection.close()
        self._sidecar.sync()
        self._sidecar.close()
        self._lease.give_back()


def _begin_epoch(connection: sqlite3.Connection) -> int:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE writer SET epoch = epoch + 1")
    epoch: int = connection.execute("SELECT epoch FROM writer").fetchone()[0]
    connection.execute("COMMIT")
    return epoch


def _checked_head(connection: sqlite3.Connection, folder: Path) -> Head:
    """The last record, if all that tells of it agrees: the record itself, the row beside it, the file beside that.

    The whole chain is the business of ``verify``, which takes longer.
    """
    head = Head(*connection.execute("SELECT seq, hash FROM writer").fetchone())
    anchor = Head(*connection.execute("SELECT seq, hash FROM anchor").fetchone())
    rows = connection.execute(f"SELECT {RECORD} FROM records ORDER BY seq DESC LIMIT 2")
    last = [Record(*row) for row in rows]
    if last:
        before = Head(last[1].seq, last[1].hash) if len(last) > 1 else anchor
        wrong = why_not_next(before, last[0])
        if wrong:
            raise JournalBroken(f"{folder / FILE_NAME}: {wrong}. {_WHAT_TO_DO}")
    end = Head(last[0].seq, last[0].hash) if last else anchor
    if end != head:
        raise JournalBroken(
            f"{folder / FILE_NAME} ends with record {end.seq}, and should end with {head.seq}. {_WHAT_TO_DO}"
        )
    known = remembered_head(folder)
    if known is not None and known.seq > head.seq:
        raise JournalBroken(
            f"{folder / FILE_NAME} ends with record {head.seq}, and {SIDECAR_NAME} knows of record {known.seq}. "
            f"If this is an old copy on purpose, remove {SIDECAR_NAME}. {_WHAT_TO_DO}"
        )
    return head


_WHAT_TO_DO = "Run `corral db verify`, and restore the folder from a backup (all its files, journal.db-wal among them)."
