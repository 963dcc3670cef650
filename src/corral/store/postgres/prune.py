"""Removes old records from the database, once they are in an archive.

Knows the tables of the journal. Nothing is lost: the file is durable first, then the records are removed, a few at a
time so that the writer never waits long; an interrupted removal is completed by the next call.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from corral.store.journal import JournalHead
from corral.store.postgres.database import PostgresConnection, marked
from corral.store.sql.by_job import leave_out
from corral.store.sql.record_reader import Archived, anchor_in
from corral.store.sql.writer import fenced

AT_ONCE = 2000


def note_archive(link: PostgresConnection, epoch: int, archived: Archived) -> None:
    with checked(link, epoch):
        link.execute(
            "INSERT INTO archives (last_seq, last_hash, first_seq, file, sha256) VALUES (?, ?, ?, ?, ?)",
            (archived.last_seq, archived.last_hash, archived.first_seq, archived.file, archived.sha256),
        )


def remove_some(link: PostgresConnection, epoch: int, upto: int) -> JournalHead:
    """Remove some of the oldest records, at most up to ``upto``. Returns the last one removed; repeat until done."""
    with checked(link, epoch):
        anchor = anchor_in(link)
        last = min(upto, anchor.seq + AT_ONCE)
        if last <= anchor.seq:
            return anchor
        (hash_of_last,) = link.execute("SELECT hash FROM records WHERE seq = ?", (last,)).fetchone() or (b"",)
        submitted = link.execute(
            "SELECT r.seq, r.format, r.body FROM jobs AS j JOIN records AS r ON r.seq = j.seq"
            " WHERE j.seq > ? AND j.seq <= ?",
            (anchor.seq, last),
        ).fetchall()
        link.raw.cursor().executemany(
            marked("INSERT INTO submissions (seq, format, body) VALUES (?, ?, ?) ON CONFLICT (seq) DO NOTHING"),
            [(seq, format, zlib.compress(body)) for seq, format, body in submitted],
        )
        with link.raw.pipeline():
            leave_out(link, last)
        link.execute("DELETE FROM records WHERE seq <= ?", (last,))
        link.execute("UPDATE anchor SET seq = ?, hash = ?", (last, hash_of_last))
        return JournalHead(last, hash_of_last)


@contextmanager
def checked(link: PostgresConnection, epoch: int) -> Iterator[None]:
    """A transaction that fails if the epoch of the writer is another one."""
    with link.transaction():
        if link.execute("SELECT epoch FROM writer FOR UPDATE").fetchone() != (epoch,):
            raise fenced(epoch)
        yield
