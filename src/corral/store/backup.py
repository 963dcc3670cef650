"""Copies of a whole journal: from one database to another, into a backup file, and back from it.

Knows both kinds of databases and the files of archives. Every record is checked against the chain when it is read and
when it is written, and keeps its number, epoch and hash; the projections are built again. Images are not copied: they
only save time. A backup is one archive of all records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from msgspec import Struct

from corral.store.archive import read_archive, write_archive
from corral.store.chain import BEGINNING, why_not_next
from corral.store.images import ImageFolder
from corral.store.journal import EPOCHS_AHEAD, JournalBroken, JournalBusy, JournalHead, JournalUnusable, Record
from corral.store.location import postgres
from corral.store.projection import fold
from corral.store.sql.connection import SqlConnection
from corral.store.sql.record_reader import AT_ONCE, whole_journal
from corral.store.sqlite.database import FILE_NAME, connect, open_database
from corral.store.sqlite.leader_lease import FileLease
from corral.store.sqlite.rows import put_records, tables_of
from corral.store.sqlite.sidecar import Sidecar
from corral.wire.address import is_postgres, shown

#: The location of a journal: a data folder, or the address of a database.
JournalPlace = Path | str


class Whole(Struct):
    """A snapshot of a journal: its last record, its epoch, and an iterator over all records."""

    head: JournalHead
    epoch: int
    records: Iterator[Record]


def backup(source: JournalPlace, file: Path) -> JournalHead:
    """Write all records into an archive file. A server may run meanwhile: the backup is a consistent snapshot."""
    with _reading(source) as whole:
        end = write_archive(file, BEGINNING, whole.records)
        _insist(end, whole.head)
        return end


def restore(file: Path, target: JournalPlace) -> JournalHead:
    """Fill an empty folder or database with the records of a backup, all or nothing."""
    last = BEGINNING
    for record in read_archive(file):  # check all of it before anything is created
        last = JournalHead(record.seq, record.hash)
    epoch = record.epoch + EPOCHS_AHEAD if last.seq else 0
    with _filling(target) as into:
        _insist(into.take(read_archive(file), epoch), last)
    return last


def copy(source: JournalPlace, target: JournalPlace) -> JournalHead:
    """Fill an empty folder or database with a journal that no server has open, all or nothing."""
    with _held(source), _reading(source) as whole, _filling(target) as into:
        _insist(into.take(whole.records, whole.epoch), whole.head)
        return whole.head


def missing_heads(source: JournalPlace, heads: Iterable[JournalHead]) -> list[JournalHead]:
    """The heads that are not records of this journal, or have another hash there."""
    wanted = {head.seq: head for head in heads}
    with _connected(source) as connection:
        for record in whole_journal(connection, source if isinstance(source, Path) else Path.cwd()):
            if record.seq in wanted and wanted[record.seq].hash == record.hash:
                del wanted[record.seq]
    return [wanted[seq] for seq in sorted(wanted)]


def _insist(end: JournalHead, wanted: JournalHead) -> None:
    if end != wanted:
        raise JournalBroken(f"the last record is {end.seq}; it should be {wanted.seq}")


# ---- reading ---------------------------------------------------------------------------------------------------------


@contextmanager
def _reading(place: JournalPlace) -> Iterator[Whole]:
    with _connected(place) as connection:
        epoch, *head = connection.execute("SELECT epoch, seq, hash FROM writer").fetchone()
        folder = place if isinstance(place, Path) else Path.cwd()
        yield Whole(JournalHead(*head), epoch, _followed(whole_journal(connection, folder)))


@contextmanager
def _connected(place: JournalPlace) -> Iterator[SqlConnection]:
    """A connection with a consistent snapshot."""
    if isinstance(place, str):
        store = postgres()
        store.PostgresReader(place).close()  # raises if there is no journal
        with closing(store.connect(place)) as link:
            link.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield link
        return
    if not (place / FILE_NAME).is_file():
        raise JournalUnusable(f"there is no journal in {place}")
    with closing(connect(place / FILE_NAME)) as connection:
        connection.execute("BEGIN")
        yield connection


def _followed(records: Iterable[Record]) -> Iterator[Record]:
    head = BEGINNING
    for record in records:
        wrong = why_not_next(head, record)
        if wrong:
            raise JournalBroken(wrong)
        yield record
        head = JournalHead(record.seq, record.hash)


@contextmanager
def _held(place: JournalPlace) -> Iterator[None]:
    """Keep servers from opening the journal meanwhile."""
    if isinstance(place, str):
        reader = postgres().PostgresReader(place)
        now = reader.leadership()
        reader.close()
        if now.is_held:
            raise JournalBusy(f"{shown(place)} is in use by the server at {now.url}. Stop that server first.")
        yield
        return
    lease = FileLease(place)
    try:
        yield
    finally:
        lease.give_back()


# ---- writing ---------------------------------------------------------------------------------------------------------


class _Filling:
    """An open transaction on an empty database."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection

    def take(self, records: Iterable[Record], epoch: int) -> JournalHead:
        """Write all records and their projections. Returns the last record."""
        head, source = BEGINNING, _followed(records)
        while part := list(islice(source, AT_ONCE)):
            self._put(part)
            head = JournalHead(part[-1].seq, part[-1].hash)
        self._connection.execute("UPDATE writer SET epoch = ?, seq = ?, hash = ?", (epoch, head.seq, head.hash))
        return head

    def _put(self, records: Sequence[Record]) -> None:
        raise NotImplementedError


class _FillingSqlite(_Filling):
    def __init__(self, folder: Path) -> None:
        self.raw = open_database(folder)
        super().__init__(self.raw)
        self._tables = tables_of(self.raw)
        self.raw.execute("BEGIN IMMEDIATE")

    def _put(self, records: Sequence[Record]) -> None:
        put_records(self.raw, records)
        fold(self._tables.tables, records)
        self._tables.flush()


@contextmanager
def _filling(place: JournalPlace) -> Iterator[_Filling]:
    if isinstance(place, str):
        with postgres().filling(place) as link:
            yield _FillingPostgres(link)
        return
    if (place / FILE_NAME).exists():
        raise JournalUnusable(f"there is already a journal in {place}. Name an empty folder.")
    lease = FileLease(place)
    into: _FillingSqlite | None = None
    try:
        ImageFolder(place / "images").drop_after(0)  # images of an earlier journal
        into = _FillingSqlite(place)
        yield into
        into.raw.execute("COMMIT")
        sidecar = Sidecar(place)
        sidecar.put(JournalHead(*into.raw.execute("SELECT seq, hash FROM writer").fetchone()))
        sidecar.sync()
        sidecar.close()
        into.raw.close()
    except BaseException:
        if into is not None:
            into.raw.close()
        for file in place.glob(f"{FILE_NAME}*"):  # created here: there was none before
            file.unlink()
        raise
    finally:
        lease.give_back()


class _FillingPostgres(_Filling):
    def __init__(self, link: SqlConnection) -> None:
        super().__init__(link)
        self._store = postgres()
        self._tables = self._store.tables_of(link)

    def _put(self, records: Sequence[Record]) -> None:
        self._store.put_records(self._connection, records)
        fold(self._tables.tables, records)
        self._tables.flush()


def place_of(data: Path, database: str) -> JournalPlace:
    """The database if one is named, otherwise the data folder."""
    if not database:
        return data
    if not is_postgres(database):
        raise JournalUnusable(f"{shown(database)} is not the address of a PostgreSQL database: postgresql://...")
    return database
