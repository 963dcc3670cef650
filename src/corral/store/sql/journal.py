"""The part of a journal that all databases share: numbers and chains appended records, saves images, archives records.

Appending takes microseconds and is done from one thread; a separate thread writes. Any thread may read. Each database
defines its transactions and how a server becomes the only writer.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from corral.store.archive import ArchiveRefused, digest_of, write_archive
from corral.store.chain import chain, why_not_next
from corral.store.journal import (
    NO_SEQ,
    Entry,
    JournalBroken,
    JournalFailed,
    JournalHead,
    Record,
    StoredImage,
    all_records,
)
from corral.store.sql.by_job import enter_some, has_older
from corral.store.sql.connection import SqlConnection
from corral.store.sql.prune import note_archive, remove_some
from corral.store.sql.record_reader import RECORD, Archived, anchor_in, archives_in
from corral.store.sql.writer import JournalWriter
from corral.wire import codec

_log = logging.getLogger(__name__)


class JournalReader(Protocol):
    """The same journal without the right to write."""

    def read(self, after: int, limit: int) -> list[Record]: ...
    def anchor(self) -> JournalHead: ...
    def save_image(self, image: StoredImage) -> None: ...
    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None: ...
    def archived(self, after: int) -> Iterator[Record]: ...
    def image_seqs(self) -> list[int]: ...


class SqlJournal(ABC):
    """Implements ``Journal``. A subclass must set these attributes before any method is called."""

    folder: Path  # of archives
    _head: JournalHead
    _epoch: int
    _reader: JournalReader
    _writer: JournalWriter
    _is_closed = False

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def head(self) -> JournalHead:
        return self._head

    def append(self, entries: Sequence[Entry]) -> Future[JournalHead]:
        future: Future[JournalHead] = Future()
        future.set_running_or_notify_cancel()  # an append cannot be cancelled
        failure = JournalFailed("the journal is closed") if self._is_closed else self._writer.failure
        if failure is not None:
            future.set_exception(failure)
            return future
        records = chain(self._head, self._epoch, codec.FORMAT, entries)
        if records:
            self._head = JournalHead(records[-1].seq, records[-1].hash)
        self._writer.append(future, records)
        return future

    def read(self, after: int, limit: int) -> list[Record]:
        return self._reader.read(after, limit)

    # ---- images ------------------------------------------------------------------------------------------------

    def save_image(self, image: StoredImage) -> None:
        """Save an image, after the records it was made of are durable: it must never be ahead of them."""
        assert image.seq <= self._head.seq, "an image of records that were never appended"
        self._writer.run(lambda: None).result()
        self._reader.save_image(image)

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        return self._reader.newest_image(below)

    def archived(self, after: int) -> Iterator[Record]:
        return self._reader.archived(after)

    def image_seqs(self) -> list[int]:
        """The numbers of the records with images, newest first."""
        return self._reader.image_seqs()

    # ---- archives ----------------------------------------------------------------------------------------------

    def archive(self, upto: int, path: Path | None = None) -> Path:
        """Move the records up to that one into a file. Other writing continues; call from any thread except the one
        that appends. Records after the oldest image are not archived: a restart from it needs them."""
        images = self._usable_images()
        if not images or upto > min(images):
            oldest = f"the oldest image is of record {min(images)}" if images else "there is no image yet"
            raise ArchiveRefused(
                f"records up to {upto} cannot be archived: {oldest}, and a restart needs all records after it"
            )
        for archived in self._writer.run(lambda: archives_in(self._own_connection())).result():
            self._remove(archived.last_seq)  # complete an interrupted call
        anchor = self._reader.anchor()
        if upto <= anchor.seq:
            raise ArchiveRefused(f"records up to {anchor.seq} are already archived")
        path = path or self.folder / "archive" / f"{anchor.seq + 1:012}-{upto:012}.jsonl.gz"
        records = takewhile(lambda record: record.seq <= upto, all_records(self, anchor.seq, 2000))
        end = write_archive(path, anchor, records)
        archived = Archived(end.seq, end.hash, anchor.seq + 1, self._name_of(path), digest_of(path))
        self._writer.run(lambda: self._note_archive(archived)).result()
        self._remove(end.seq)
        return path

    def _remove(self, upto: int) -> None:
        while self._reader.anchor().seq < upto:
            self._writer.run(lambda: self._remove_some(upto)).result()

    def _usable_images(self) -> list[int]:
        """The numbers of the records with images that a restart could use."""
        return self._reader.image_seqs()

    def _name_of(self, path: Path) -> str:
        """The name of an archive in the database."""
        return str(path.absolute())

    # ---- records by job ----------------------------------------------------------------------------------------

    def _enter_older(self) -> None:
        """Enter older records into the index of records by job, between transactions and a part at a time. If this is
        interrupted, the next start continues; until then these records are scanned."""

        def some() -> None:
            try:
                has_more = has_older(self._own_connection()) and self._enter_some()
            except Exception as wrong:
                _log.warning("records_by_job_not_entered: %s", wrong)
                return
            if has_more and not self._is_closed:
                self._writer.run(some)

        self._writer.run(some)

    # ---- in the thread of the writer ---------------------------------------------------------------------------

    @abstractmethod
    def _own_connection(self) -> SqlConnection:
        """The connection of the writer thread."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """A transaction that fails if the epoch of the writer is another one."""

    @abstractmethod
    def _put_pairs(self, pairs: Sequence[tuple[str, int]]) -> None:
        """Write rows of the index of records by job."""

    def _maintenance(self) -> AbstractContextManager[None]:
        """Around statements that may take long."""
        return nullcontext()

    def _together(self) -> AbstractContextManager[object]:
        """Around many statements that need not wait for each other."""
        return nullcontext()

    def _note_archive(self, archived: Archived) -> None:
        with self._maintenance(), self._transaction():
            note_archive(self._own_connection(), archived)

    def _remove_some(self, upto: int) -> None:
        """Remove some archived records, at most up to that one."""
        with self._maintenance(), self._transaction():
            remove_some(self._own_connection(), upto, self._together())

    def _enter_some(self) -> bool:
        """Enter some older records into the index of records by job. Returns whether there are more."""
        with self._transaction():
            enter_some(self._own_connection(), self._put_pairs)
            return has_older(self._own_connection())


def check_end(connection: SqlConnection, head: JournalHead, where: str, todo: str) -> None:
    """Raise unless the last record is the one that the row of the writer names, and follows the one before it.

    ``verify`` checks the whole chain, which takes longer.
    """
    rows = connection.execute(f"SELECT {RECORD} FROM records ORDER BY seq DESC LIMIT 2").fetchall()
    last, anchor = [Record(*row) for row in rows], anchor_in(connection)
    if last:
        before = JournalHead(last[1].seq, last[1].hash) if len(last) > 1 else anchor
        wrong = why_not_next(before, last[0])
        if wrong:
            raise JournalBroken(f"{where}: {wrong}. {todo}")
    end = JournalHead(last[0].seq, last[0].hash) if last else anchor
    if end != head:
        raise JournalBroken(f"{where} ends with record {end.seq}; it should end with {head.seq}. {todo}")
