"""A second place that knows how far the journal goes: the last record, in a small file beside the database.

A database that was cut short together with its own account of its end looks whole; this file tells. It is written
after every commit and forced to disk now and then, so it may be behind the database and is never ahead of it.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path

from corral.store.files import sync_folder
from corral.store.journal import Head

FILE_NAME = "journal.head"

_SIZE = 160  # within one sector, which a disk writes as a whole
_SYNC_EVERY_S = 1.0


class Sidecar:
    """The file, open for writing."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        self._synced_s = time.monotonic()
        sync_folder(folder)

    def put(self, head: Head) -> None:
        os.pwrite(self._file, _line(head), 0)
        if time.monotonic() - self._synced_s > _SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file)
        self._synced_s = time.monotonic()

    def close(self) -> None:
        os.close(self._file)


def remembered_head(folder: Path) -> Head | None:
    """What the file says; None if there is none, or if it does not make sense."""
    try:
        line = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        seq, digest, _ = line.decode("ascii").split(" ", 2)
        head = Head(int(seq), bytes.fromhex(digest))
    except ValueError:
        return None
    return head if line == _line(head) else None


def _line(head: Head) -> bytes:
    said = f"{head.seq} {head.hash.hex()} "
    return (said + sha256(said.encode()).hexdigest()).ljust(_SIZE - 1).encode() + b"\n"
