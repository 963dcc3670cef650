"""Verifies records and archives: every link of the chain, in the database and in archives.

Knows the tables of the journal; reads only, and continues after an error to find others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from corral.store.archive import archive_begins_after, digest_of, read_archive
from corral.store.chain import BEGINNING, why_not_next
from corral.store.journal import JournalBroken, JournalHead, Record
from corral.store.sql.connection import SqlConnection
from corral.store.sql.record_reader import anchor_in, archives_in, records_in
from corral.wire import codec


class Finding(Struct, frozen=True):
    """One error. ``about``: database, record, end, archive, image or projection."""

    about: str
    text: str
    seq: int | None = None


def wrong_archives(connection: SqlConnection, folder: Path) -> Iterator[Finding]:
    """Check that each archive is intact, is the file that was written, and follows the one before it."""
    end = BEGINNING
    for archived in archives_in(connection):
        path, last = archived.path_from(folder), end
        try:
            if archive_begins_after(path) != end:
                yield Finding("archive", f"{path} does not follow the archive before it", archived.first_seq)
            if digest_of(path) != archived.sha256:
                yield Finding("archive", f"{path} was changed after it was written", archived.first_seq)
            for record in read_archive(path):
                yield from _unreadable(record)
                last = JournalHead(record.seq, record.hash)
            if last != JournalHead(archived.last_seq, archived.last_hash):
                yield Finding("archive", f"{path} does not end with record {archived.last_seq}", archived.last_seq)
        except JournalBroken as wrong:
            yield Finding("archive", str(wrong), archived.first_seq)
        end = JournalHead(archived.last_seq, archived.last_hash)
    anchor = anchor_in(connection)
    if anchor.seq > end.seq or (anchor.seq == end.seq and anchor.hash != end.hash):
        text = f"records up to {anchor.seq} were removed, but only those up to {end.seq} are archived"
        yield Finding("archive", text, anchor.seq)


def wrong_records(connection: SqlConnection) -> Iterator[Finding]:
    head, epoch = anchor_in(connection), 0
    for record in records_in(connection, after=-(1 << 62)):  # also finds records below the first one
        wrong = why_not_next(head, record)
        if wrong:
            yield Finding("record", wrong, record.seq)
        if record.epoch < epoch:
            yield Finding("record", f"record {record.seq} has epoch {record.epoch}, after epoch {epoch}", record.seq)
        yield from _unreadable(record)
        head, epoch = JournalHead(record.seq, record.hash), record.epoch
    expected = JournalHead(*connection.execute("SELECT seq, hash FROM writer").fetchone())
    if expected != head:
        yield Finding("end", f"the last record is {head.seq}; it should be {expected.seq}", head.seq)


def _unreadable(record: Record) -> Iterator[Finding]:
    try:
        codec.decode(record.format, record.body)
    except codec.Unreadable as wrong:
        yield Finding("record", f"record {record.seq} cannot be read: {wrong}", record.seq)
