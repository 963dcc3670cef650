"""The sidecar: the last record of the journal in a small file beside the database.

A database that was truncated consistently looks intact; this file reveals it. It is written after every commit and
synced to disk once per second, so it may be behind the database and is never ahead of it.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path

from corral.io.files import sync
from corral.store.journal import JournalHead

FILE_NAME = "journal.head"

_SIZE = 160  # within one sector, which a disk writes as a whole
_SYNC_EVERY_S = 1.0


class Sidecar:
    """The file, open for writing."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        self._synced_s = time.monotonic()
        sync(folder)

    def put(self, head: JournalHead) -> None:
        os.pwrite(self._file, _line(head), 0)
        if time.monotonic() - self._synced_s > _SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file)
        self._synced_s = time.monotonic()

    def close(self) -> None:
        os.close(self._file)


def remembered_head(folder: Path) -> JournalHead | None:
    """The content of the file; None if it is missing or invalid."""
    try:
        line = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        seq, digest, _ = line.decode("ascii").split(" ", 2)
        head = JournalHead(int(seq), bytes.fromhex(digest))
    except ValueError:
        return None
    return head if line == _line(head) else None


def _line(head: JournalHead) -> bytes:
    text = f"{head.seq} {head.hash.hex()} "
    return (text + sha256(text.encode()).hexdigest()).ljust(_SIZE - 1).encode() + b"\n"
