"""Logs of tasks that are over, as agents have brought them: they outlive the machine on which they were written.

The same files as on a machine, so that they are read and grow old in the same way. Of a long log only the end comes.
Knows files and offsets. Chunks may come twice.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from corral.backends.base import LogPart, TaskKey
from corral.backends.fleet.member import Member
from corral.backends.fleet.messages import LogAsk, LogChunk, LogReply
from corral.backends.local.logs import STREAMS, LogStore
from corral.backends.local.state import name_of

_KEEP_MS, _BYTES_MAX = 30 * 86_400_000, 20 << 30
_STREAM_BYTES_MAX, _SEGMENTS_MAX = 8 << 20, 16  # of one stream of one task; an agent brings half of that


class KeptLogs:
    def __init__(self, root: Path) -> None:
        self._store = LogStore(root)

    def keep(self, chunk: LogChunk) -> int:
        """How far we have the stream now. Chunks come in order; one that leaves a gap begins a new segment. What is
        more than an agent may bring is left aside."""
        if chunk.stream not in STREAMS:
            return 0
        folder = self._store.folder(name_of(chunk.key))
        os.makedirs(folder, mode=0o700, exist_ok=True)
        segments = _segments(folder, chunk.stream)
        start, size = segments[-1] if segments else (-1, 0)
        end = start + size
        if start < 0 or chunk.offset > end:
            start = end = chunk.offset
            is_full = len(segments) >= _SEGMENTS_MAX
        else:
            is_full = False
        room = 0 if is_full else _STREAM_BYTES_MAX - sum(size for _, size in segments)
        fresh = chunk.data[end - chunk.offset :][: max(room, 0)]
        if fresh:
            path = f"{folder}/{chunk.stream}.{start:016d}"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as segment:
                segment.write(fresh)
        end += len(fresh)
        if chunk.is_over:
            Path(_mark(folder, chunk.stream)).touch(mode=0o600)
        return end

    def is_whole(self, key: TaskKey, stream: str) -> bool:
        return os.path.exists(_mark(self._store.folder(name_of(key)), stream))

    def read(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        return self._store.read(name_of(key), stream, offset, limit, lambda: self.is_whole(key, stream), False)

    def prune(self) -> None:
        self._store.prune(_KEEP_MS, _BYTES_MAX)


class LogWanted:
    """Somebody waits for a part of a log."""

    def __init__(self, id: int, member: Member) -> None:
        self.id, self.member = id, member
        self.event = threading.Event()
        self.part: LogPart | None = None


class LogDesk:
    """Questions about logs that agents have not answered yet. They travel with what is wanted of a node."""

    def __init__(self) -> None:
        self._open: dict[int, LogWanted] = {}
        self._last = 0

    def ask(self, member: Member, key: TaskKey, stream: str, offset: int, limit: int) -> LogWanted:
        self._last += 1
        asked = self._open[self._last] = LogWanted(self._last, member)
        member.log_asks[asked.id] = LogAsk(asked.id, key, stream, offset, limit)
        member.wake()
        return asked

    def answer(self, node: str, reply: LogReply) -> None:
        asked = self._open.get(reply.id)
        if asked is not None and asked.member.name == node:
            del self._open[reply.id]
            asked.part = reply.part
            asked.event.set()

    def give_up(self, asked: LogWanted) -> None:
        self._open.pop(asked.id, None)
        asked.member.log_asks.pop(asked.id, None)

    def close(self) -> None:
        for asked in self._open.values():
            asked.event.set()


def _mark(folder: str, stream: str) -> str:
    return f"{folder}/whole.{stream}"


def _segments(folder: str, stream: str) -> list[tuple[int, int]]:
    """Where each segment begins, and its size, in order."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(stream + "."))
    return [(int(name.rpartition(".")[2]), os.stat(f"{folder}/{name}").st_size) for name in names]
