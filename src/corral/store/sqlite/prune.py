"""Removes old records from the database, once they are in an archive.

Knows the tables of the journal. Nothing is lost: the file is durable first, then the records are removed, a few at a
time so that the writer never waits long; an interrupted removal is completed by the next call.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from corral.store.journal import JournalFenced, JournalHead
from corral.store.sql.by_job import leave_out
from corral.store.sql.record_reader import Archived

AT_ONCE = 2000


def note_archive(connection: sqlite3.Connection, epoch: int, archived: Archived) -> None:
    with transaction(connection, epoch):
        connection.execute(
            "INSERT INTO archives (last_seq, last_hash, first_seq, file, sha256) VALUES (?, ?, ?, ?, ?)",
            (archived.last_seq, archived.last_hash, archived.first_seq, archived.file, archived.sha256),
        )


def remove_some(connection: sqlite3.Connection, epoch: int, upto: int) -> JournalHead:
    """Remove some of the oldest records, at most up to ``upto``. Returns the last one removed; repeat until done."""
    with transaction(connection, epoch):
        anchor = JournalHead(*connection.execute("SELECT seq, hash FROM anchor").fetchone())
        last = min(upto, anchor.seq + AT_ONCE)
        if last <= anchor.seq:
            return anchor
        (hash_of_last,) = connection.execute("SELECT hash FROM records WHERE seq = ?", (last,)).fetchone()
        submitted = connection.execute(
            "SELECT r.seq, r.format, r.body FROM jobs AS j JOIN records AS r ON r.seq = j.seq"
            " WHERE j.seq > ? AND j.seq <= ?",
            (anchor.seq, last),
        ).fetchall()
        connection.executemany(
            "INSERT OR REPLACE INTO submissions (seq, format, body) VALUES (?, ?, ?)",
            [(seq, format, zlib.compress(body)) for seq, format, body in submitted],
        )
        leave_out(connection, last)
        connection.execute("DELETE FROM records WHERE seq <= ?", (last,))
        connection.execute("UPDATE anchor SET seq = ?, hash = ?", (last, hash_of_last))
        return JournalHead(last, hash_of_last)


@contextmanager
def transaction(connection: sqlite3.Connection, epoch: int) -> Iterator[None]:
    """A transaction that fails if the epoch of the writer is another one."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("SELECT epoch FROM writer").fetchone() != (epoch,):
            raise JournalFenced(f"another server has taken over from epoch {epoch}. This server must stop.")
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
