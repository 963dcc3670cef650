"""Room on a disk that is kept back: a file of a stated size, given up when nothing else is left, so that what must be
written still can be.

Knows one file and the file system that it is on. Who gives it up says so.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from corral.store.files import make_folder

FILE_NAME = "journal.reserve"
RESERVE_BYTES = 64 << 20
#: Less than this part of a disk, and less than this much of it, is too little to take in new work or to keep logs.
_KEEP_PART, _KEEP_MAX = 20, 1 << 30


class Reserve:
    def __init__(self, folder: Path, size: int = RESERVE_BYTES) -> None:
        self._path, self._size = folder / FILE_NAME, size

    @property
    def is_held(self) -> bool:
        try:
            return self._path.stat().st_size >= self._size
        except OSError:
            return False

    def take(self) -> bool:
        """Keep the room back. False: there is not as much, or not so much that others have some as well."""
        if self.is_held:
            return True
        if free_bytes(self._path.parent) < self._size + keep_bytes(self._path.parent):
            return False
        make_folder(self._path.parent)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, self._size)
            return True
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)

    def release(self) -> bool:
        """Give the room up. False: there was none."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True


def free_bytes(folder: Path) -> int:
    """What whoever is not root may still write there."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def keep_bytes(folder: Path) -> int:
    """How much of the disk is left alone by everything that can wait."""
    room = os.statvfs(folder)
    return min(room.f_blocks * room.f_frsize // _KEEP_PART, _KEEP_MAX)


def is_full(wrong: BaseException) -> bool:
    """Whether something failed because the disk has no room."""
    if isinstance(wrong, OSError) and wrong.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return (getattr(wrong, "sqlite_errorname", "") or "").startswith("SQLITE_FULL")
