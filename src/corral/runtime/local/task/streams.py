"""Copies the output of a task from a pipe to files of limited size, and to the user's own file.

A stream is stored as segments named by the offset at which they start; the oldest is deleted when the limit is reached.
Beside each there may be the times at which its parts arrived (`time_marks`).
What cannot be stored (a full disk) is counted and noted in the log; it never blocks the task. Knows bytes, not lines.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from corral.runtime.local.task.isolation import touches
from corral.runtime.local.time_marks import TimeMarks, marks_path

STDOUT, STDERR = "stdout", "stderr"
USER = "user"  # a file beside the segments: the owner of the log
_CHUNK = 1 << 20
CHECK_BYTES = 4 << 20  # between two checks whether the disk has space
_KEEP_PART, _KEEP_MAX = 20, 1 << 30  # logs leave a twentieth of a disk free, up to 1 GiB: the journal may be on it
_SEGMENTS = 8
_SEGMENT_MIN = 1 << 16
_RETRY_S = 1.0
_F_SETPIPE_SZ = 1031
RANKS_MAX = 256  # in one task, with pipes of their own; more share the pipes of the task
_RANK_CHUNK = 1 << 18
_LINE_MAX = 1 << 20
_LINE_S, _BAR_S = 30.0, 1.0  # after this time a line without its end is passed on; a progress bar
_LAST = 1 << 12
_DRAIN_MAX = 64 << 20
EMPTY = -1  # nothing to read now
OVER = 0  # no process can write any more


class Stream:
    """One of stdout and stderr. ``source`` is read here; the processes get ``sink``."""

    def __init__(self, folder: str, name: str, bytes_max: int, user: str = "") -> None:
        self.folder = folder
        self.name = name
        self._user = user
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self._set_bound(bytes_max)
        self._starts: list[int] = []  # offsets of the stored segments
        self._offset = 0
        self._file = -1
        self._room = 0
        self._lost = 0
        self._checked = 0  # the offset up to which may be written before the next check of the disk
        self._retry_at = 0.0
        self._splices = True
        self._is_wide = False
        self._copy = -1
        self._marks: TimeMarks | None = None  # of the open segment

    def _set_bound(self, bytes_max: int) -> None:
        self._bytes_max = max(bytes_max, 2 * _SEGMENT_MIN)
        self._segment_max = max(bytes_max // _SEGMENTS, _SEGMENT_MIN)

    def limit(self, bytes_max: int) -> None:
        """Store at most this much from now on; the oldest part is deleted at once."""
        if bytes_max >= self._bytes_max:
            return
        self._set_bound(bytes_max)
        self._room = 0  # so that a segment of the new size comes next
        self.note(
            f"your logs on this machine exceed the limit for one user: from now on only the last {bytes_max >> 10} KiB "
            f"of {self.name} are stored"
        )

    def copy_to(self, fd: int) -> None:
        self._copy = fd

    def pump(self) -> int:
        """Copy once what has arrived. Returns how much, or `EMPTY`, or `OVER`."""
        if self._retry_at > time.monotonic():
            return self._discard("")
        if self._copy >= 0 or not self._splices or self._room == 0 or self._offset >= self._checked:
            return self._pump_through_memory()
        try:
            count = os.splice(self.source, self._file, min(_CHUNK, self._room))
        except BlockingIOError:
            return EMPTY
        except OSError as fault:
            if fault.errno == errno.EINVAL:
                self._splices = False  # this file system does not support it
                return self._pump_through_memory()
            return self._discard(fault.strerror or str(fault))
        if count:
            self._mark(count, 0)
        self._count(count)
        return count

    def drain(self) -> None:
        """Copy the rest of the pipe after the task has ended; not all, in case another process holds it open."""
        left = 64 * _CHUNK
        while left > 0 and (count := self.pump()) > 0:
            left -= count
        if self._lost:
            self._retry_at = 0.0
            self.note("")
        self._close_segment()
        os.close(self.source)

    def note(self, text: str) -> None:
        """Write a line of Corral's own to the log."""
        data = f"corral: {text}\n".encode("utf-8", "replace") if text else b""
        try:
            self._open_segment()
            self._write(data)
        except OSError:
            pass  # the disk is full; there is nowhere to write it

    def tail(self, count: int) -> bytes:
        """The last bytes that are stored."""
        found = b""
        for start in reversed(self._starts):
            try:
                with open(self._path(start), "rb") as segment:
                    segment.seek(max(segment.seek(0, os.SEEK_END) - count + len(found), 0))
                    found = segment.read() + found
            except OSError:
                break
            if len(found) >= count:
                break
        return found

    def drop_oldest(self) -> bool:
        """Free space: delete the oldest segment, but not the one being written."""
        if len(self._starts) < 2:
            return False
        self._unlink(self._starts.pop(0))
        return True

    def _pump_through_memory(self) -> int:
        """Like splice, but through memory: for a second reader, where splice is not supported, and to start a segment,
        which is only done when there is something to put in it."""
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return EMPTY
        self.keep(data)
        if data:
            self._widen(len(data))
        return len(data)

    def keep(self, data: bytes, rank: int = 0) -> None:
        """Store data that did not come through the pipe. ``rank``: of the process that wrote it."""
        self._copy_on(data)
        if self._retry_at > time.monotonic():
            self._lose(len(data), "")
            return
        rest = data
        try:
            while rest:
                self._open_segment()
                rest = rest[self._write_some(rest[: self._room], rank) :]
        except OSError as fault:
            self._lose(len(rest), fault.strerror or str(fault))

    def _copy_on(self, data: bytes) -> None:
        if self._copy < 0:
            return
        try:
            rest = data
            while rest:
                rest = rest[os.write(self._copy, rest) :]
        except OSError as fault:
            os.close(self._copy)
            self._copy = -1
            self.note(f"{self.name} is no longer copied to its file: {fault.strerror}")

    def _discard(self, reason: str) -> int:
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return EMPTY
        self._copy_on(data)
        self._lose(len(data), reason)
        return len(data)

    def _lose(self, count: int, reason: str) -> None:
        """A gap counts in the offsets: a new segment starts behind it."""
        if reason:
            self._retry_at = time.monotonic() + _RETRY_S
        self._lost += count
        self._offset += count
        self._room = 0

    def _open_segment(self) -> None:
        if self._offset >= self._checked:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            if not has_room(self.folder):
                raise OSError(errno.ENOSPC, "the rest of the disk is reserved")
            self._checked = self._offset + CHECK_BYTES
        if self._room > 0:
            return
        self._close_segment()
        if not self._starts:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self._write_user()
        while self._starts and self._offset + self._segment_max - self._starts[0] > self._bytes_max:
            self._unlink(self._starts.pop(0))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(self._path(self._offset), flags, 0o600)
        if not self._starts or self._starts[-1] != self._offset:
            self._starts.append(self._offset)
        self._marks = TimeMarks(marks_path(self.folder, self.name, self._offset))
        self._room = self._segment_max
        if self._lost:
            lost, self._lost = self._lost, 0
            try:
                self._write(f"\ncorral: {lost} bytes of {self.name} were lost here: no space to store them\n".encode())
            except OSError:
                self._lost, self._room = lost, 0
                raise

    def _write_user(self) -> None:
        if self._user:
            fd = os.open(f"{self.folder}/{USER}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, self._user.encode("utf-8", "replace"))
            finally:
                os.close(fd)

    def _write(self, data: bytes) -> None:
        """Write to the open segment, which has space for it or grows a little."""
        while data:
            data = data[self._write_some(data) :]

    def _write_some(self, data: bytes, rank: int = 0) -> int:
        count = os.write(self._file, data)
        self._mark(count, rank)
        self._offset += count
        self._room = max(self._room - count, 0)
        return count

    def _count(self, count: int) -> None:
        self._offset += count
        self._room -= count
        self._widen(count)

    def _mark(self, count: int, rank: int) -> None:
        """Record when these bytes, just written at the offset, have arrived."""
        if self._marks is not None:
            try:
                self._marks.add(self._offset, time.time_ns() // 1_000_000, rank, count)
            except OSError:
                self._marks.close()  # a full disk: this segment has no more times
                self._marks = None

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._marks is not None:
            self._marks.close()
            self._marks = None

    def _widen(self, count: int) -> None:
        """A busy writer gets a larger pipe. For every task, it would waste locked memory."""
        if count >= _SEGMENT_MIN and not self._is_wide:
            self._is_wide = True
            try:
                fcntl.fcntl(self.source, _F_SETPIPE_SZ, _CHUNK)
            except OSError:
                pass  # this user has too many large pipes

    def _unlink(self, start: int) -> None:
        for path in (self._path(start), marks_path(self.folder, self.name, start)):
            try:
                os.unlink(path)
            except OSError:
                pass

    def _path(self, start: int) -> str:
        return f"{self.folder}/{self.name}.{start:016d}"


class RankOutput:
    """One of stdout and stderr of one of several processes. ``source`` is read here; the process gets ``sink``.

    It is passed on to the stream of the task in whole lines, so that lines of ranks are never mixed and each is known
    to be of its rank. A line that is very long, or that is not completed for a while, is passed on in parts.
    """

    def __init__(self, stream: Stream, rank: int) -> None:
        self._stream = stream
        self._rank = rank
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self.last = b""  # what was read last
        self._rest = b""  # a line that is not complete
        self._since = 0.0

    def pump(self) -> int:
        """Copy once what has arrived. Returns how much, or `EMPTY`, or `OVER`."""
        try:
            data = os.read(self.source, _RANK_CHUNK)
        except BlockingIOError:
            return EMPTY
        if not data:
            self._pass_on(self._rest)
            self._rest = b""
            return OVER
        self.last = (self.last + data)[-_LAST:]
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _LINE_MAX:
            end = len(data)
        if end:
            self._pass_on(data[:end])
        if end or not self._rest:
            self._since = time.monotonic()
        self._rest = data[end:]
        return len(data)

    def flush_old(self) -> None:
        """Pass on a line that was not completed for a while."""
        patience_s = _BAR_S if b"\r" in self._rest else _LINE_S
        if self._rest and time.monotonic() - self._since > patience_s:
            self._pass_on(self._rest)
            self._rest = b""

    def drain(self) -> None:
        """Copy the rest after the process has ended; not all, in case another process holds the pipe open."""
        left = _DRAIN_MAX
        while left > 0 and (count := self.pump()) > 0:
            left -= count
        self._pass_on(self._rest)
        self._rest = b""
        os.close(self.source)

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._stream.keep(data, self._rank)


def has_room(folder: str) -> bool:
    """Whether logs may use more of the disk of this directory."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize >= min(room.f_blocks * room.f_frsize // _KEEP_PART, _KEEP_MAX)


def open_copy(path: str, kept: list[str], umask: int) -> int:
    """Open the user's own file with the rights of the caller, for appending, so that several tasks may share it.
    ``kept``: paths that are not the user's, although the caller has rights there. ``umask``: of the user; that of the
    caller protects the files of Corral."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    own = os.umask(umask)
    try:
        fd = _open_outside(path, flags, kept) if kept else os.open(path, flags, 0o666)
    finally:
        os.umask(own)
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def _open_outside(path: str, flags: int, kept: list[str]) -> int:
    """Open the file through its directory, which is held from the check until the file is open. A link instead of the
    file could lead anywhere, so it is refused."""
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = os.path.basename(path)
        if touches(f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}", kept):
            raise PermissionError(errno.EACCES, "Corral hides this path from tasks")
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=folder)
    finally:
        os.close(folder)
