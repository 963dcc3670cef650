"""Reads the records of a journal: first from archives, then from the database.

Knows the tables of the journal and the files of archives. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from corral.store.archive import read_archive
from corral.store.journal import JournalHead, Record
from corral.store.sql.connection import SqlConnection

AT_ONCE = 2000
RECORD = "seq, epoch, format, at_ms, actor, request, body, hash"


class Archived(Struct, frozen=True):
    """One archive: its records, its file, and the digest of the file."""

    last_seq: int
    last_hash: bytes
    first_seq: int
    file: str
    sha256: str

    def path_from(self, folder: Path) -> Path:
        return folder / self.file  # an absolute name stays what it is


def archives_in(connection: SqlConnection) -> list[Archived]:
    rows = connection.execute("SELECT last_seq, last_hash, first_seq, file, sha256 FROM archives ORDER BY last_seq")
    return [Archived(*row) for row in rows.fetchall()]


def anchor_in(connection: SqlConnection) -> JournalHead:
    """The last record that was moved to an archive; number 0 if none was."""
    return JournalHead(*connection.execute("SELECT seq, hash FROM anchor").fetchone())


def records_in(connection: SqlConnection, after: int = 0) -> Iterator[Record]:
    """The records of the database above a number, in order."""
    while True:
        rows = connection.execute(
            f"SELECT {RECORD} FROM records WHERE seq > ? ORDER BY seq LIMIT ?", (after, AT_ONCE)
        ).fetchall()
        if not rows:
            return
        yield from (Record(*row) for row in rows)
        after = rows[-1][0]


def archived_in(connection: SqlConnection, folder: Path, after: int) -> Iterator[Record]:
    """The records of the archives above a number, each once."""
    for archived in archives_in(connection):
        if archived.last_seq > after:
            for record in read_archive(archived.path_from(folder)):
                if record.seq > after:
                    yield record
                    after = record.seq


def whole_journal(connection: SqlConnection, folder: Path) -> Iterator[Record]:
    """All records: those of the archives, then those of the database."""
    last = 0
    for archived in archives_in(connection):
        for record in read_archive(archived.path_from(folder)):
            if record.seq > last:
                yield record
        last = max(last, archived.last_seq)
    yield from records_in(connection, last)
