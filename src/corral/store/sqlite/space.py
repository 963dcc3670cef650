"""Returns unused space in the database file to the disk.

Knows the two ways of SQLite: with incremental vacuum, free pages are returned a few at a time; older databases are
rewritten as a whole (VACUUM), which needs room for a copy, and use incremental vacuum from then on. Both are atomic.
Knows nothing about what the tables mean.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from corral.store.reserve import free_bytes, is_full

#: Takes effect before a database has its first page, or when it is rewritten. 2: SQLite's INCREMENTAL.
KEEP_ACCOUNT = "PRAGMA auto_vacuum = 2"
#: Pages that are returned at once; the writer never waits for more.
PAGES_AT_ONCE = 2000
#: Extra space for the file system, and for what others write meanwhile.
_MARGIN_BYTES = 16 << 20


class NoRoom(Exception):
    """The database cannot be rewritten: there is no room for a copy. The text says where and how much."""


def give_some_back(connection: sqlite3.Connection) -> bool:
    """Return some free pages, in the open transaction. Returns whether there are more."""
    connection.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()
    return _number(connection, "freelist_count") > 0


def keeps_account(connection: sqlite3.Connection) -> bool:
    return _number(connection, "auto_vacuum") == 2


def write_again(connection: sqlite3.Connection, folder: Path) -> None:
    """Rewrite the whole database without its free pages. Nothing else is written meanwhile."""
    used = _number(connection, "page_count") - _number(connection, "freelist_count")
    size = used * _number(connection, "page_size") + _MARGIN_BYTES
    wanted: dict[int, tuple[Path, int]] = {}  # by file system
    for place in (folder, temporary_folder()):  # the copy is made in the second, and written to the log in the first
        device = place.stat().st_dev
        wanted[device] = (place, size + (wanted[device][1] if device in wanted else 0))
    for place, bytes_wanted in wanted.values():
        if (free := free_bytes(place)) < bytes_wanted:
            raise NoRoom(f"rewriting the database needs {bytes_wanted >> 20} MiB in {place}; {free >> 20} MiB are free")
    connection.execute(KEEP_ACCOUNT)
    try:
        connection.execute("VACUUM")
    except sqlite3.OperationalError as wrong:
        if is_full(wrong):
            raise NoRoom("the disk was full before the database was rewritten; nothing was changed") from wrong
        raise


def settle(connection: sqlite3.Connection) -> None:
    """Write the log into the database file and truncate both."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def temporary_folder() -> Path:
    """The folder of SQLite's temporary files, by its own rules."""
    named = (os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR"))
    for place in (*named, "/var/tmp", "/usr/tmp", "/tmp"):
        if place and os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    return Path.cwd()


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number
