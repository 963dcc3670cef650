"""Verifies a journal: every record, every link of the chain, its end, archives, images and projections.

Reads only, and may be used while a server writes. Continues after an error to find others. docs/journal.md says what it
cannot find.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from corral.store.images import ImageFolder
from corral.store.journal import JournalHead, JournalUnusable
from corral.store.sql.by_job import wrong_entries
from corral.store.sql.findings import Finding, wrong_archives, wrong_records
from corral.store.sql.record_reader import anchor_in, whole_journal
from corral.store.sqlite.database import DAMAGE, FILE_NAME, connect, explained
from corral.store.sqlite.rebuild import differences
from corral.store.sqlite.sidecar import FILE_NAME as SIDECAR_NAME
from corral.store.sqlite.sidecar import remembered_head

__all__ = ["Finding", "verify"]


def verify(folder: Path) -> list[Finding]:
    """All errors found in the journal of a data folder; empty if it is intact."""
    if not (folder / FILE_NAME).is_file():
        raise JournalUnusable(f"there is no journal in {folder}")
    known = remembered_head(folder)  # before the database is read: that can only be further
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(folder / FILE_NAME)
        connection.text_factory = lambda text: text.decode(errors="surrogateescape")  # also read damaged text
        connection.execute("BEGIN")
        return list(_findings(connection, folder, known))
    except DAMAGE as wrong:
        return [Finding("database", str(explained(wrong, folder / FILE_NAME)))]
    except TypeError:
        return [Finding("database", f"{folder / FILE_NAME}: a table that must have one row is empty")]
    finally:
        if connection is not None:
            connection.close()


def _findings(connection: sqlite3.Connection, folder: Path, known: JournalHead | None) -> Iterator[Finding]:
    found = [Finding("database", text) for (text,) in connection.execute("PRAGMA quick_check(10)") if text != "ok"]
    found += wrong_archives(connection, folder)
    found += wrong_records(connection)
    found += _end(connection, folder, known)
    yield from found
    yield from _images(connection, folder)
    if not found:  # otherwise a comparison makes no sense
        yield from (Finding("projection", text) for text in wrong_entries(connection))
        yield from (Finding("projection", text) for text in differences(folder, whole_journal(connection, folder)))


def _end(connection: sqlite3.Connection, folder: Path, known: JournalHead | None) -> Iterator[Finding]:
    """Check the sidecar: it may be behind, but the record it names must exist."""
    if known is None:
        yield Finding("end", f"{folder / SIDECAR_NAME} is missing or damaged: a truncated journal cannot be detected")
        return
    row = connection.execute("SELECT hash FROM records WHERE seq = ?", (known.seq,)).fetchone()
    anchor = anchor_in(connection)
    if known.seq < anchor.seq or (row is None and known == anchor):
        return  # the record it names is in an archive
    if row is None:
        text = f"{SIDECAR_NAME} names record {known.seq}, which does not exist: the journal was truncated"
        yield Finding("end", text, known.seq)
    elif row[0] != known.hash:
        yield Finding("end", f"record {known.seq} is not the one that {SIDECAR_NAME} names", known.seq)


def _images(connection: sqlite3.Connection, folder: Path) -> Iterator[Finding]:
    (last,) = connection.execute("SELECT seq FROM writer").fetchone()
    images = ImageFolder(folder / "images")
    for seq in images.seqs():
        if images.load(seq) is None:
            yield Finding("image", f"the image of record {seq} is damaged; an older one, or none, is used instead", seq)
        elif seq > last:
            yield Finding("image", f"there is an image of record {seq}, but the last record is {last}", seq)
