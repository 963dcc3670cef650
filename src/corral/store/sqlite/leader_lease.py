"""One writer at a time: a lock on a file in the data directory, held as long as the process lives.

Knows the data directory and its holder. The operating system releases the lock when the holder dies. A forked child
closes its copy immediately, so that no task can keep the lock of a dead server.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from corral.io.files import make_folder
from corral.store.journal import JournalBusy, JournalUnusable


class _Holder(msgspec.Struct):
    pid: int
    since_ms: int


class FileLease:
    """The right to write, until it is released."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        make_private_folder(folder)
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as wrong:
            raise JournalUnusable(f"cannot write in {folder}: {wrong.strerror}. {_HOW_TO_OWN}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            busy = JournalBusy(
                f"{folder} is in use {_by_whom(self._file)}. Stop that process first, or use another folder."
            )
            os.close(self._file)
            raise busy from None
        holder = msgspec.json.encode(_Holder(os.getpid(), time.time_ns() // 1_000_000))
        os.pwrite(self._file, holder.ljust(128), 0)
        _held.add(self)

    def give_back(self) -> None:
        if self in _held:
            _held.discard(self)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # a new child may not have closed its copy yet
            os.close(self._file)

    def _let_go_in_child(self) -> None:
        os.close(self._file)


def make_private_folder(folder: Path) -> None:
    """Create the data directory, private to its owner. An existing one is not changed: it may be shared."""
    try:
        make_folder(folder)
        os.listdir(folder)
    except FileExistsError:
        raise JournalUnusable(f"{folder} is not a folder. Use a folder for the data.") from None
    except OSError as wrong:
        raise JournalUnusable(f"cannot use the folder {folder}: {wrong.strerror}. {_HOW_TO_OWN}") from None


_HOW_TO_OWN = "Run as the user who owns it, or use another folder for the data."
_held: weakref.WeakSet[FileLease] = weakref.WeakSet()


def _let_go() -> None:
    """Close the copies of a forked child; the lock stays with its parent."""
    for lease in list(_held):
        lease._let_go_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _by_whom(file: int) -> str:
    try:
        holder = msgspec.json.decode(os.pread(file, 128, 0).rstrip(), type=_Holder)
    except msgspec.DecodeError:
        return "by another process"
    since = datetime.fromtimestamp(holder.since_ms / 1000, UTC)
    return f"by process {holder.pid} since {since:%Y-%m-%d %H:%M:%S} UTC"
