"""The journal on SQLite: takes the lease, begins an epoch, writes records and projections.

Knows the files of the folder. What all journals share is in ``sql.journal``.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from corral.store.folder_identity import claim_identity
from corral.store.journal import EPOCHS_AHEAD, JournalBroken, JournalHead, Record
from corral.store.projection import fold
from corral.store.reserve import Reserve, is_full
from corral.store.sql.connection import SqlConnection
from corral.store.sql.journal import SqlJournal, check_end
from corral.store.sql.record_reader import whole_journal
from corral.store.sql.writer import JournalWriter, fenced
from corral.store.sqlite.database import DAMAGE, FILE_NAME, explained, open_database
from corral.store.sqlite.leader_lease import FileLease
from corral.store.sqlite.lookup import SqliteLookup
from corral.store.sqlite.reader import SqliteReader
from corral.store.sqlite.rebuild import rebuild
from corral.store.sqlite.rows import put_pairs, put_records, tables_of
from corral.store.sqlite.sidecar import FILE_NAME as SIDECAR_NAME
from corral.store.sqlite.sidecar import Sidecar, remembered_head
from corral.store.sqlite.space import give_some_back, keeps_account, settle, write_again

_log = logging.getLogger(__name__)
_FULL_LOOK_S = 0.5


class SqliteJournal(SqlJournal):
    """Implements ``Journal`` in a folder of its own; must be closed."""

    _reader: SqliteReader
    reserve: Reserve | None = None  # disk space reserved for it
    full_patience_s = 0.0  # how long to wait for room on a full disk

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lease = FileLease(folder)
        try:
            self._connection = open_database(folder)
        except BaseException:
            self._lease.give_back()
            raise
        try:
            self._head = _checked_head(self._connection, folder)
            self._epoch = _begin_epoch(self._connection, self._ahead())
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
        todo = "Check that the disk works and has free space, then start again."
        self._writer = JournalWriter(self._head, self._commit, self._sidecar.put, (sqlite3.Error,), todo)
        self._enter_older()

    def _ahead(self) -> int:
        """How much to increase the epoch. A copy of another folder gets epochs that its original will not reach."""
        is_copy = claim_identity(self.folder).is_copy and self._head.seq > 0
        if is_copy:
            _log.warning(
                "data_folder_copied: %s is a copy of another folder and gets an identity of its own", self.folder
            )
        return EPOCHS_AHEAD if is_copy else 1

    @property
    def lookup(self) -> SqliteLookup:
        return self._reader.lookup

    # ---- maintenance -------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Build the projections again from all records, archived ones too. Nothing else is written meanwhile."""

        def rebuild_all() -> None:
            rebuild(self._connection, whole_journal(self._connection, self.folder))
            self._reader.images.drop_after(self._head.seq)
            self._tables = tables_of(self._connection)

        self._writer.run(rebuild_all).result()
        self._enter_older()

    def shrink(self) -> int:
        """Return the space of archived records to the disk. Returns the number of bytes freed. Raises ``NoRoom`` if a
        database of an earlier version must be rewritten and there is no room for a copy."""
        before = self._reader.size()
        if self._writer.run(lambda: keeps_account(self._connection)).result():
            while self._writer.run(self._give_some_back).result():
                pass
        else:
            self._writer.run(lambda: write_again(self._connection, self.folder)).result()
        self._writer.run(lambda: settle(self._connection)).result()
        return before - self._reader.size()

    def _usable_images(self) -> list[int]:
        return [seq for seq in self._reader.images.seqs() if self._reader.images.load(seq) is not None]

    def _name_of(self, path: Path) -> str:
        """Relative to the folder, if possible, so that the folder can be moved."""
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path.absolute())

    # ---- in the thread of the writer ---------------------------------------------------------------------------

    def _own_connection(self) -> SqlConnection:
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if self._connection.execute("SELECT epoch FROM writer").fetchone() != (self._epoch,):
                raise fenced(self._epoch)
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def _put_pairs(self, pairs: Sequence[tuple[str, int]]) -> None:
        put_pairs(self._connection, pairs)

    def _give_some_back(self) -> bool:
        with self._transaction():
            return give_some_back(self._connection)

    def _commit(self, head: JournalHead, records: Sequence[Record]) -> None:
        """Write records. On a full disk, use the reserve first, then wait up to ``full_patience_s`` for free space:
        nothing is acknowledged meanwhile, and nothing is lost."""
        until = time.monotonic() + self.full_patience_s
        while True:
            try:
                self._commit_once(head, records)
                return
            except (sqlite3.Error, OSError) as wrong:
                if not is_full(wrong):
                    raise
                self._tables = tables_of(self._connection)  # discard cached rows with uncommitted changes
                if self.reserve is not None and self.reserve.release():
                    _log.error("disk_full: the journal uses its reserve; free space in %s", self.folder)
                    continue
                if self._is_closed or time.monotonic() >= until:
                    raise
                _log.error("disk_full: the journal in %s cannot be written; waiting for free space", self.folder)
                time.sleep(_FULL_LOOK_S)

    def _commit_once(self, head: JournalHead, records: Sequence[Record]) -> None:
        """Write records and projections in one transaction."""
        connection, last = self._connection, records[-1]
        connection.execute("BEGIN IMMEDIATE")
        try:
            writer = connection.execute(
                "UPDATE writer SET seq = ?, hash = ? WHERE epoch = ? AND seq = ?",
                (last.seq, last.hash, self._epoch, head.seq),
            )
            if writer.rowcount != 1:
                raise fenced(self._epoch)
            put_records(connection, records)
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


def _begin_epoch(connection: sqlite3.Connection, ahead: int) -> int:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE writer SET epoch = epoch + ?", (ahead,))
    epoch: int = connection.execute("SELECT epoch FROM writer").fetchone()[0]
    connection.execute("COMMIT")
    return epoch


def _checked_head(connection: sqlite3.Connection, folder: Path) -> JournalHead:
    """The last record. Raises unless the record, the row of the writer and the sidecar file agree."""
    head = JournalHead(*connection.execute("SELECT seq, hash FROM writer").fetchone())
    check_end(connection, head, str(folder / FILE_NAME), _WHAT_TO_DO)
    known = remembered_head(folder)
    if known is not None and known.seq > head.seq:
        raise JournalBroken(
            f"{folder / FILE_NAME} ends with record {head.seq}, but {SIDECAR_NAME} names record {known.seq}. "
            f"If this is an old copy on purpose, remove {SIDECAR_NAME}. {_WHAT_TO_DO}"
        )
    return head


_WHAT_TO_DO = "Run `corral db verify`, and restore the folder from a backup (all its files, journal.db-wal among them)."
