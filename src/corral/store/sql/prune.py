"""Removes old records from the database, once they are in an archive.

Knows the tables of the journal. The caller opens a transaction around every call. Nothing is lost: the file is durable
first, then the records are removed, a few at a time so that the writer never waits long; an interrupted removal is
completed by the next call.
"""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, nullcontext

from corral.store.journal import JournalHead
from corral.store.sql.by_job import leave_out
from corral.store.sql.connection import SqlConnection
from corral.store.sql.record_reader import Archived, anchor_in

AT_ONCE = 2000


def note_archive(connection: SqlConnection, archived: Archived) -> None:
    connection.execute(
        "INSERT INTO archives (last_seq, last_hash, first_seq, file, sha256) VALUES (?, ?, ?, ?, ?)",
        (archived.last_seq, archived.last_hash, archived.first_seq, archived.file, archived.sha256),
    )


def remove_some(
    connection: SqlConnection, upto: int, together: AbstractContextManager[object] | None = None
) -> JournalHead:
    """Remove some of the oldest records, at most up to ``upto``. Returns the last one removed; repeat until done.
    ``together``: sends many statements without waiting for each."""
    anchor = anchor_in(connection)
    last = min(upto, anchor.seq + AT_ONCE)
    if last <= anchor.seq:
        return anchor
    (hash_of_last,) = connection.execute("SELECT hash FROM records WHERE seq = ?", (last,)).fetchone()
    submitted = connection.execute(
        "SELECT r.seq, r.format, r.body FROM jobs AS j JOIN records AS r ON r.seq = j.seq"
        " WHERE j.seq > ? AND j.seq <= ?",
        (anchor.seq, last),
    ).fetchall()
    with together or nullcontext():
        for seq, format, body in submitted:
            connection.execute(
                "INSERT INTO submissions (seq, format, body) VALUES (?, ?, ?) ON CONFLICT (seq) DO NOTHING",
                (seq, format, zlib.compress(body)),
            )
        leave_out(connection, last)
    connection.execute("DELETE FROM records WHERE seq <= ?", (last,))
    connection.execute("UPDATE anchor SET seq = ?, hash = ?", (last, hash_of_last))
    return JournalHead(last, hash_of_last)
