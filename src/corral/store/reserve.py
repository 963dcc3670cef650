"""Reserved disk space: a file of a fixed size that is deleted when the disk is full, so that the journal can go on.

Knows one file and its file system. The caller logs when the reserve is used.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from corral.io.files import make_folder

FILE_NAME = "journal.reserve"
RESERVE_BYTES = 64 << 20
#: With less free space than this part of the disk (1/20), at most 1 GiB, no jobs are accepted and no logs are stored.
_KEEP_PART, _KEEP_MAX = 20, 1 << 30


class Reserve:
    def __init__(self, folder: Path, size: int = RESERVE_BYTES) -> None:
        self._path = folder / FILE_NAME
        self._size = size

    @property
    def is_held(self) -> bool:
        try:
            return self._path.stat().st_size >= self._size
        except OSError:
            return False

    def take(self) -> bool:
        """Create the reserve. False if there is not enough free space for it and for other files."""
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
        """Delete the reserve. False if there was none."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True


def free_bytes(folder: Path) -> int:
    """Free space for users other than root."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def keep_bytes(folder: Path) -> int:
    """Free space that must remain for the journal; everything else stops using the disk before."""
    room = os.statvfs(folder)
    return min(room.f_blocks * room.f_frsize // _KEEP_PART, _KEEP_MAX)


def is_full(wrong: BaseException) -> bool:
    """Whether an error means that the disk is full."""
    if isinstance(wrong, OSError) and wrong.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return (getattr(wrong, "sqlite_errorname", "") or "").startswith("SQLITE_FULL")
