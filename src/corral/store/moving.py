"""A journal taken as a whole from one place to another: copied, backed up into a file, restored from it.

Knows both kinds of databases and the files of archives. Every record is checked against the chain on its way out and on
its way in, and keeps its number, epoch and hash; what is looked up is folded anew. Images stay behind: they only save
time. A backup is one archive of all records there ever were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from msgspec import Struct

from corral.store.address import postgres
from corral.store.archive import read_archive, write_archive
from corral.store.chain import BEGINNING, why_not_next
from corral.store.images import ImageFolder
from corral.store.journal import EPOCHS_AHEAD, Head, JournalBroken, JournalBusy, JournalUnusable, Record
from corral.store.projection import fold
from corral.store.sql.connection import Connection
from corral.store.sql.records import AT_ONCE, whole_journal
from corral.store.sqlite.database import FILE_NAME, connect, open_database
from corral.store.sqlite.lease import Lease
from corral.store.sqlite.rows import put_records, tables_of
from corral.store.sqlite.sidecar import Sidecar
from corral.wire.address import is_postgres, shown

#: Where a journal is: a data folder, or the address of a database.
JournalPlace = Path | str


class Whole(Struct):
    """A journal at one moment: its last record, its epoch, and all records from the first on, to be read once."""

    head: Head
    epoch: int
    records: Iterator[Record]


def backup(source: JournalPlace, file: Path) -> Head:
    """Write all records into a file that proves itself. A server may go on meanwhile: it is one moment."""
    with _reading(source) as whole:
        end = write_archive(file, BEGINNING, whole.records)
        _insist(end, whole.head)
        return end


def restore(file: Path, target: JournalPlace) -> Head:
    """Fill an empty place with the records of a backup, all or nothing."""
    last = BEGINNING
    for record in read_archive(file):  # all of it, before anything is made
        last = Head(record.seq, record.hash)
    epoch = record.epoch + EPOCHS_AHEAD if last.seq else 0
    with _filling(target) as into:
        _insist(into.take(read_archive(file), epoch), last)
    return last


def copy(source: JournalPlace, target: JournalPlace) -> Head:
    """Fill an empty place with a journal that no server has open, all or nothing."""
    with _held(source), _reading(source) as whole, _filling(target) as into:
        _insist(into.take(whole.records, whole.epoch), whole.head)
        return whole.head


def missing_heads(source: JournalPlace, heads: Iterable[Head]) -> list[Head]:
    """Those of the heads that are no records of this journal, or are others there."""
    wanted = {head.seq: head for head in heads}
    with _connected(source) as connection:
        for record in whole_journal(connection, source if isinstance(source, Path) else Path.cwd()):
            if record.seq in wanted and wanted[record.seq].hash == record.hash:
                del wanted[record.seq]
    return [wanted[seq] for seq in sorted(wanted)]


def _insist(end: Head, wanted: Head) -> None:
    if end != wanted:
        raise JournalBroken(f"the records end with {end.seq}, and should end with {wanted.seq}")


# ---- out -------------------------------------------------------------------------------------------------------------


@contextmanager
def _reading(place: JournalPlace) -> Iterator[Whole]:
    with _connected(place) as connection:
        epoch, *head = connection.execute("SELECT epoch, seq, hash FROM writer").fetchone()
        folder = place if isinstance(place, Path) else Path.cwd()
        yield Whole(Head(*head), epoch, _followed(whole_journal(connection, folder)))


@contextmanager
def _connected(place: JournalPlace) -> Iterator[Connection]:
    """A connection that sees one moment."""
    if isinstance(place, str):
        store = postgres()
        store.PostgresReader(place).close()  # says what is wrong with the place
        with closing(store.connect(place)) as link:
            link.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield link
        return
    if not (place / FILE_NAME).is_file():
        raise JournalUnusable(f"there is no journal in {place}. Name the data folder of a server.")
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
        head = Head(record.seq, record.hash)


@contextmanager
def _held(place: JournalPlace) -> Iterator[None]:
    """No server has it meanwhile."""
    if isinstance(place, str):
        reader = postgres().PostgresReader(place)
        now = reader.leadership()
        reader.close()
        if now.is_held:
            raise JournalBusy(f"{shown(place)} is led by the server at {now.url}. Stop that one first.")
        yield
        return
    lease = Lease(place)
    try:
        yield
    finally:
        lease.give_back()


# ---- in --------------------------------------------------------------------------------------------------------------


class _Filling:
    """An open transaction on an empty database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self, records: Iterable[Record], epoch: int) -> Head:
        """All records, and what is folded from them. Returns the last."""
        head, source = BEGINNING, _followed(records)
        while part := list(islice(source, AT_ONCE)):
            self._put(part)
            head = Head(part[-1].seq, part[-1].hash)
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
        raise JournalUnusable(f"there is a journal in {place} already. Name an empty folder.")
    lease = Lease(place)
    into: _FillingSqlite | None = None
    try:
        ImageFolder(place / "images").drop_after(0)  # of a journal that is not here any more
        into = _FillingSqlite(place)
        yield into
        into.raw.execute("COMMIT")
        sidecar = Sidecar(place)
        sidecar.put(Head(*into.raw.execute("SELECT seq, hash FROM writer").fetchone()))
        sidecar.sync()
        sidecar.close()
        into.raw.close()
    except BaseException:
        if into is not None:
            into.raw.close()
        for file in place.glob(f"{FILE_NAME}*"):  # made here: there was none before
            file.unlink()
        raise
    finally:
        lease.give_back()


class _FillingPostgres(_Filling):
    def __init__(self, link: Connection) -> None:
        super().__init__(link)
        self._store = postgres()
        self._tables = self._store.tables_of(link)

    def _put(self, records: Sequence[Record]) -> None:
        self._store.put_records(self._connection, records)
        fold(self._tables.tables, records)
        self._tables.flush()


def place_of(data: Path, database: str) -> JournalPlace:
    """A database where one is named, the data folder otherwise."""
    if not database:
        return data
    if not is_postgres(database):
        raise JournalUnusable(f"{shown(database)} is not the address of a PostgreSQL database: postgresql://...")
    return database
