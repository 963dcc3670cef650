"""Reads and prunes the logs of tasks.

Knows the segments that `streams` writes: files named by stream and the offset at which they start. A segment may be
deleted while it is being read; then the read starts again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from corral.runtime.base import LogPart
from corral.runtime.local.log_quota import LogExcess, Round
from corral.runtime.local.state_dir import short
from corral.runtime.local.task.streams import STDERR, STDOUT, USER
from corral.runtime.local.time_marks import READ_MAX, marks_path, read_marks

STREAMS = (STDOUT, STDERR)
_SHARDS = 256
_TRIES = 5
_USER_MAX = 1_000  # of a name, in bytes


class LogStore:
    """All logs of one backend, in directories that are small enough to be listed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._next_shard = 0
        self._round = Round()
        self._excess: dict[str, LogExcess] = {}  # by user

    def folder(self, name: str) -> str:
        return f"{self._root}/{short(name)[:2]}/{name}"

    def read(
        self, name: str, stream: str, offset: int, limit: int, is_over: Callable[[], bool], is_known: bool
    ) -> LogPart | None:
        """``is_over``: whether the task has ended. Asked before reading: then nothing can follow what is found."""
        if stream not in STREAMS:
            return None
        folder = self.folder(name)
        for _ in range(_TRIES):
            was_over = is_over()
            segments = _segments(folder, stream)
            if segments is None and not is_known:
                return None
            try:
                return _part(folder, stream, segments or [], offset, limit, was_over)
            except FileNotFoundError:
                continue  # the oldest segment was deleted meanwhile
        return LogPart(max(offset, 0), b"", max(offset, 0), False)  # it rotates faster than it is read: ask again

    def prune(
        self, keep_ms: int, bytes_max: int, user_bytes_max: int = 0, is_live: Callable[[str], bool] = lambda _: False
    ) -> dict[str, int]:
        """Delete logs older than this. Each call handles one part of them, in turns.

        If all together are larger than ``bytes_max``, or those of a user than ``user_bytes_max``, the oldest logs of
        the users with most are deleted (`log_quota`), except those of running tasks. For these it returns, once in a
        round, how many bytes each may keep.
        """
        shard, now = self._root / f"{self._next_shard:02x}", time.time()
        for folder in shard.iterdir() if shard.is_dir() else ():
            try:
                found = [file.stat() for file in folder.iterdir()]
            except OSError:
                continue  # it is being written
            if found:
                age_s, size = now - max(file.st_mtime for file in found), sum(file.st_size for file in found)
                self._judge(folder, age_s, size, keep_ms, is_live)
        self._next_shard = (self._next_shard + 1) % _SHARDS
        if self._next_shard:
            return {}
        self._excess, limits = self._round.decide(bytes_max, user_bytes_max)
        self._round = Round()
        return limits

    def _judge(self, folder: Path, age_s: float, size: int, keep_ms: int, is_live: Callable[[str], bool]) -> None:
        user = _user_of(folder)
        excess = self._excess.get(user)
        if is_live(folder.name):
            self._round.count_live(user, folder.name, size)
        elif age_s * 1000 > keep_ms or (excess is not None and excess.takes(age_s, size)):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self._round.count(user, age_s, size)


def _user_of(folder: Path) -> str:
    try:
        with open(folder / USER, "rb") as file:
            return file.read(_USER_MAX).decode("utf-8", "replace")
    except OSError:
        return ""  # from a version that did not record users


def _segments(folder: str, stream: str) -> list[tuple[int, str]] | None:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    return sorted((int(name.rpartition(".")[2]), name) for name in names if name.startswith(stream + "."))


def _part(
    folder: str, stream: str, segments: list[tuple[int, str]], offset: int, limit: int, was_over: bool
) -> LogPart:
    """A part of one segment; the caller continues from ``next_offset``. If a full disk left a gap, or the oldest part
    was deleted, the part starts behind it."""
    if not segments:
        return LogPart(0, b"", 0, was_over)
    sizes = [os.stat(f"{folder}/{name}").st_size for _, name in segments]
    end = segments[-1][0] + sizes[-1]
    at = max(end + offset, 0) if offset < 0 else min(offset, end)
    with_more = (s for s, size in zip(segments, sizes, strict=True) if size > 0 and at < s[0] + size)
    start, name = next(with_more, segments[-1])  # an empty segment was started on a full disk
    at = max(at, start)
    with open(f"{folder}/{name}", "rb") as segment:
        segment.seek(at - start)
        data = segment.read(limit)
        written_ms = os.fstat(segment.fileno()).st_mtime_ns // 1_000_000
    marks = read_marks(marks_path(folder, stream, start), at, at + len(data)) if data else []
    if data and not marks:
        marks = [(at, written_ms, 0)]  # written at once
    if len(marks) == READ_MAX:  # there may be more
        data = data[: marks.pop()[0] - at]
    return LogPart(at, data, at + len(data), was_over and at + len(data) >= end, tuple(marks))
