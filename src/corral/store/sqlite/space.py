"""Space in the file of the database that nothing uses any more, given back to the disk.

Knows SQLite's two ways: databases that keep account of their pages give free ones back a few at a time; older ones are
written again as a whole, which needs room for a copy, and keep account from then on. Either is done or not done,
however the process ends. Knows nothing of what the tables mean.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from corral.store.reserve import free_bytes, is_full

#: Set before a database has its first page, or by writing it again. 2: SQLite's INCREMENTAL.
KEEP_ACCOUNT = "PRAGMA auto_vacuum = 2"
#: So many pages are given back at once: whoever writes waits for no more.
PAGES_AT_ONCE = 2000
#: What the file system needs for itself, and for what others write meanwhile.
_MARGIN_BYTES = 16 << 20


class NoRoom(Exception):
    """The database cannot be written again: there is no room for a copy. Says where and how much."""


def give_some_back(connection: sqlite3.Connection) -> bool:
    """Give a few free pages back, in the transaction that is open. Whether there are more that can be."""
    connection.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()
    return _number(connection, "freelist_count") > 0


def keeps_account(connection: sqlite3.Connection) -> bool:
    return _number(connection, "auto_vacuum") == 2


def write_again(connection: sqlite3.Connection, folder: Path) -> None:
    """The whole database, without what is free in it. Nobody can write meanwhile."""
    used = _number(connection, "page_count") - _number(connection, "freelist_count")
    size = used * _number(connection, "page_size") + _MARGIN_BYTES
    wanted: dict[int, tuple[Path, int]] = {}  # by file system
    for place in (folder, temporary_folder()):  # a copy is made in the one, and read back into the log in the other
        device = place.stat().st_dev
        wanted[device] = (place, size + (wanted[device][1] if device in wanted else 0))
    for place, bytes_wanted in wanted.values():
        if (free := free_bytes(place)) < bytes_wanted:
            raise NoRoom(
                f"writing the database again needs {bytes_wanted >> 20} MiB in {place}, and {free >> 20} MiB are free"
            )
    connection.execute(KEEP_ACCOUNT)
    try:
        connection.execute("VACUUM")
    except sqlite3.OperationalError as wrong:
        if is_full(wrong):
            raise NoRoom("the disk was full before the database was written again; nothing has changed") from wrong
        raise


def settle(connection: sqlite3.Connection) -> None:
    """Bring the file itself to its size: pages go where they belong, and the log is emptied."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def temporary_folder() -> Path:
    """Where SQLite puts its temporary files, by its own rules."""
    named = (os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR"))
    for place in (*named, "/var/tmp", "/usr/tmp", "/tmp"):
        if place and os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    return Path.cwd()


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number
