"""When parts of a log were written, and by which rank: a file of marks of fixed size beside each segment of a stream.

A mark says: from this offset on, what follows was read from the pipe at this time and comes from this rank. Knows
offsets and times, not lines.
"""

from __future__ import annotations

import os

SIZE = 20  # of a mark: the offset, the time, the rank
_FREE = 4096  # bytes of marks that a segment may always have
_TIMES = 4  # beyond that, times are marked in at most this part of the log
_RANKS = 4  # and ranks in at most this many times as much
READ_MAX = 4096  # marks of one part of a log

TYPE_CHECKING = False
if TYPE_CHECKING:
    Mark = tuple[int, int, int]  # offset, milliseconds, rank


def marks_path(folder: str, stream: str, start: int) -> str:
    """The marks of the segment that starts at this offset."""
    return f"{folder}/times.{stream}.{start:016d}"


class TimeMarks:
    """Writes the marks of one segment. The first is written with the second: most tasks write once, and then the time
    of the segment says it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._first = b""
        self._last_ms = self._last_rank = 0
        self._size = self._written = 0  # bytes of marks, and of the log

    def add(self, offset: int, at_ms: int, rank: int, count: int) -> None:
        """``count`` bytes were written at this offset."""
        self._written += count
        if (at_ms, rank) == (self._last_ms, self._last_rank):
            return
        most = self._written // _TIMES if rank == self._last_rank else self._written * _RANKS
        if self._size > _FREE + most:
            return
        data = _packed(offset, at_ms, rank)
        self._last_ms, self._last_rank = at_ms, rank
        self._size += SIZE
        if not self._first and rank == 0:
            self._first = data
            return
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            data = self._first + data
            self._first = self._first or data
        os.write(self._fd, data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def append_marks(path: str, marks: tuple[Mark, ...], written: int) -> None:
    """Add marks that another machine has made, as many as a log of ``written`` bytes can have."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        most = (_FREE + written * _RANKS - os.fstat(fd).st_size) // SIZE
        os.write(fd, b"".join(_packed(*mark) for mark in marks[: max(most, 0)]))
    finally:
        os.close(fd)


def read_marks(path: str, start: int, end: int) -> list[Mark]:
    """The marks of the bytes from ``start`` up to ``end``. The first holds at ``start``. None: nothing is known."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        low, high = 0, os.fstat(fd).st_size // SIZE
        while low < high:
            middle = (low + high) // 2
            if int.from_bytes(os.pread(fd, 8, middle * SIZE), "little") <= start:
                low = middle + 1
            else:
                high = middle
        first = max(low - 1, 0)
        data = os.pread(fd, READ_MAX * SIZE, first * SIZE)
    finally:
        os.close(fd)
    found: list[Mark] = []
    for at in range(0, len(data) - SIZE + 1, SIZE):
        offset, at_ms, rank = _unpacked(data, at)
        if offset >= end:
            break
        found.append((max(offset, start), at_ms, rank))
    return found


def _packed(offset: int, at_ms: int, rank: int) -> bytes:
    return offset.to_bytes(8, "little") + at_ms.to_bytes(8, "little") + rank.to_bytes(4, "little")


def _unpacked(data: bytes, at: int) -> Mark:
    return (
        int.from_bytes(data[at : at + 8], "little"),
        int.from_bytes(data[at + 8 : at + 16], "little"),
        int.from_bytes(data[at + 16 : at + SIZE], "little"),
    )
