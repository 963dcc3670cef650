"""What is wrong with records and archives: every link of the chain, wherever its records are.

Knows the tables of the journal; reads only, and goes on after a fault to find the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from corral.store.archive import archive_begins_after, digest_of, read_archive
from corral.store.chain import BEGINNING, why_not_next
from corral.store.journal import Head, JournalBroken, Record
from corral.store.sql.connection import Connection
from corral.store.sql.records import anchor_in, archives_in, records_in
from corral.wire import codec


class Finding(Struct, frozen=True):
    """One thing that is wrong. ``about``: database, record, end, archive, image or projection."""

    about: str
    text: str
    seq: int | None = None


def wrong_archives(connection: Connection, folder: Path) -> Iterator[Finding]:
    """Each file proves itself; here, that it is the file it was, and that each begins where the one before ends."""
    end = BEGINNING
    for archived in archives_in(connection):
        path, last = archived.path_from(folder), end
        try:
            if archive_begins_after(path) != end:
                yield Finding("archive", f"{path} does not follow the archive before it", archived.first_seq)
            if digest_of(path) != archived.sha256:
                yield Finding("archive", f"{path} is not the file that was written", archived.first_seq)
            for record in read_archive(path):
                yield from _unreadable(record)
                last = Head(record.seq, record.hash)
            if last != Head(archived.last_seq, archived.last_hash):
                yield Finding("archive", f"{path} does not end with record {archived.last_seq}", archived.last_seq)
        except JournalBroken as wrong:
            yield Finding("archive", str(wrong), archived.first_seq)
        end = Head(archived.last_seq, archived.last_hash)
    anchor = anchor_in(connection)
    if anchor.seq > end.seq or (anchor.seq == end.seq and anchor.hash != end.hash):
        text = f"records up to {anchor.seq} are gone, and archived are those up to {end.seq}"
        yield Finding("archive", text, anchor.seq)


def wrong_records(connection: Connection) -> Iterator[Finding]:
    head, epoch = anchor_in(connection), 0
    for record in records_in(connection, after=-(1 << 62)):  # what is below the first does not belong
        wrong = why_not_next(head, record)
        if wrong:
            yield Finding("record", wrong, record.seq)
        if record.epoch < epoch:
            yield Finding("record", f"record {record.seq} is of epoch {record.epoch}, after one of {epoch}", record.seq)
        yield from _unreadable(record)
        head, epoch = Head(record.seq, record.hash), record.epoch
    told = Head(*connection.execute("SELECT seq, hash FROM writer").fetchone())
    if told != head:
        yield Finding("end", f"the last record is {head.seq}, and should be {told.seq}", head.seq)


def _unreadable(record: Record) -> Iterator[Finding]:
    try:
        codec.decode(record.format, record.body)
    except codec.Unreadable as wrong:
        yield Finding("record", f"record {record.seq} cannot be read: {wrong}", record.seq)
