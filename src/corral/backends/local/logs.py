"""Reading what tasks have written, and how long it is kept.

Knows the segments that `streams` writes: files named by stream and the offset at which they begin. A segment may go
away at any time while it is looked for; then one looks again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from corral.backends.base import LogPart
from corral.backends.local.state import short
from corral.backends.local.task.streams import STDERR, STDOUT

STREAMS = (STDOUT, STDERR)
_SHARDS = 256
_TRIES = 5


class LogStore:
    """All logs of one backend, in folders few enough to be listed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._next_shard = 0
        self._seen_bytes = 0  # in this round through the parts
        self._thrift = 1.0  # which part of the time that logs may be kept they are kept, so that all of them fit

    def folder(self, name: str) -> str:
        return f"{self._root}/{short(name)[:2]}/{name}"

    def read(
        self, name: str, stream: str, offset: int, limit: int, is_over: Callable[[], bool], is_known: bool
    ) -> LogPart | None:
        """``is_over``: whether the task has ended, asked before looking: then nothing can follow what is found."""
        if stream not in STREAMS:
            return None
        folder = self.folder(name)
        for _ in range(_TRIES):
            was_over = is_over()
            segments = _segments(folder, stream)
            if segments is None and not is_known:
                return None
            try:
                return _part(folder, segments or [], offset, limit, was_over)
            except FileNotFoundError:
                continue  # the oldest segment was dropped meanwhile
        return LogPart(max(offset, 0), b"", max(offset, 0), False)  # it rotates faster than we read; ask again

    def prune(self, keep_ms: int, bytes_max: int) -> None:
        """Drop logs older than this, one part of them at each call: about a second apart, that is all in some minutes.

        Where all together are more than ``bytes_max``, they are kept for a shorter time, until they fit.
        """
        shard = self._root / f"{self._next_shard:02x}"
        oldest = time.time() - keep_ms * self._thrift / 1000
        for folder in shard.iterdir() if shard.is_dir() else ():
            try:
                segments = [segment.stat() for segment in folder.iterdir()]
            except OSError:
                continue  # it is being written
            if segments and max(segment.st_mtime for segment in segments) < oldest:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self._seen_bytes += sum(segment.st_size for segment in segments)
        self._next_shard = (self._next_shard + 1) % _SHARDS
        if self._next_shard == 0:
            room = bytes_max / max(self._seen_bytes, 1)
            self._thrift = min(1.0, self._thrift * min(room, 2.0))
            self._seen_bytes = 0


def _segments(folder: str, stream: str) -> list[tuple[int, str]] | None:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    return sorted((int(name.rpartition(".")[2]), name) for name in names if name.startswith(stream + "."))


def _part(folder: str, segments: list[tuple[int, str]], offset: int, limit: int, was_over: bool) -> LogPart:
    """Of one segment; whoever wants more asks from ``next_offset``. Where a gap was left by a full disk, or the oldest
    part is gone, the part begins behind it."""
    if not segments:
        return LogPart(0, b"", 0, was_over)
    sizes = [os.stat(f"{folder}/{name}").st_size for _, name in segments]
    end = segments[-1][0] + sizes[-1]
    at = max(end + offset, 0) if offset < 0 else min(offset, end)
    with_more = (s for s, size in zip(segments, sizes, strict=True) if size > 0 and at < s[0] + size)
    start, name = next(with_more, segments[-1])  # an empty one was begun on a full disk
    at = max(at, start)
    with open(f"{folder}/{name}", "rb") as segment:
        segment.seek(at - start)
        data = segment.read(limit)
    return LogPart(at, data, at + len(data), was_over and at + len(data) >= end)
