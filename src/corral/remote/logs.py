"""The server's copies of the logs of tasks that have ended. They outlive the machine on which they were written.

The files are the same as on a machine, so they are read and pruned in the same way. Of a long log only the end is
copied. Knows files and offsets. Chunks may arrive twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from msgspec import Struct, field

from corral.remote.messages import LogAsk, LogChunk, LogReply
from corral.remote.node_session import NodeSession
from corral.runtime.base import LogPart, TaskKey
from corral.runtime.local.logs import STREAMS, LogStore
from corral.runtime.local.state_dir import name_of
from corral.runtime.local.task.streams import USER, has_room
from corral.runtime.local.time_marks import append_marks, marks_path

_KEEP_MS, _BYTES_MAX = 30 * 86_400_000, 20 << 30
_STREAM_BYTES_MAX, _SEGMENTS_MAX = 8 << 20, 16  # of one stream of one task; an agent sends half of that


class KeptLogs:
    def __init__(self, root: Path) -> None:
        self._store = LogStore(root)

    def keep(self, chunk: LogChunk, user_of: Callable[[TaskKey], str]) -> int:
        """Store a chunk. Returns up to which offset the stream is stored now.

        Chunks come in order; one that leaves a gap starts a new segment. What exceeds the limits is dropped.
        """
        if chunk.stream not in STREAMS:
            return 0
        folder = self._store.folder(name_of(chunk.key))
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if has_room(folder):
                Path(folder, USER).write_text(user_of(chunk.key))
        segments = _segments(folder, chunk.stream)
        start, size = segments[-1] if segments else (-1, 0)
        end = start + size
        if start < 0 or chunk.offset > end:
            start = end = chunk.offset
            is_full = len(segments) >= _SEGMENTS_MAX
        else:
            is_full = False
        is_full = is_full or not has_room(folder)
        room = 0 if is_full else _STREAM_BYTES_MAX - sum(size for _, size in segments)
        fresh = chunk.data[end - chunk.offset :][: max(room, 0)]
        if fresh:
            path = f"{folder}/{chunk.stream}.{start:016d}"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as segment:
                segment.write(fresh)
            marks = tuple((max(at, end), ms, rank) for at, ms, rank in _marks_of(chunk, end, end + len(fresh)))
            if marks:
                append_marks(marks_path(folder, chunk.stream, start), marks, end + len(fresh) - start)
        end += len(fresh)
        if chunk.is_over:
            Path(_mark(folder, chunk.stream)).touch(mode=0o600)
        return end

    def is_whole(self, key: TaskKey, stream: str) -> bool:
        return os.path.exists(_mark(self._store.folder(name_of(key)), stream))

    def read(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        """Read what has arrived so far."""
        if stream not in STREAMS:
            return None
        return self._store.read(name_of(key), stream, offset, limit, lambda: self.is_whole(key, stream), False)

    def prune(self) -> None:
        self._store.prune(_KEEP_MS, _BYTES_MAX)


class LogWanted(Struct):
    """A part of a log that was requested from an agent. Equal requests share its future. None: there is no answer."""

    id: int
    member: NodeSession
    what: tuple[TaskKey, str, int, int]
    until_ms: int
    part: Future[LogPart | None] = field(default_factory=Future)


class LogRequests:
    """Requests for logs that agents have not answered yet. They are sent to a node together with its orders."""

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms
        self._open: dict[int, LogWanted] = {}  # the oldest first
        self._same: dict[tuple[TaskKey, str, int, int], LogWanted] = {}
        self._last = 0

    def ask(
        self, member: NodeSession | None, what: tuple[TaskKey, str, int, int], now_ms: int
    ) -> Future[LogPart | None] | None:
        """None: there is no agent to ask."""
        self._give_up(now_ms)
        if member is None or member.is_gone:
            return None
        same = self._same.get(what)
        if same is not None and same.member is member and not same.part.done():
            return same.part
        self._last += 1
        asked = self._open[self._last] = LogWanted(self._last, member, what, now_ms + self._wait_ms)
        self._same[what] = asked
        member.log_asks[asked.id] = LogAsk(asked.id, *what)
        member.wake()
        return asked.part

    def answer(self, node: str, reply: LogReply) -> None:
        asked = self._open.get(reply.id)
        if asked is not None and asked.member.name == node:
            self._end(asked, reply.part)

    def _give_up(self, now_ms: int) -> None:
        """End the requests that were not answered in time; their readers no longer wait."""
        for asked in list(self._open.values()):
            if asked.until_ms > now_ms:
                break
            self._end(asked, None)

    def close(self) -> None:
        for asked in list(self._open.values()):
            self._end(asked, None)

    def _end(self, asked: LogWanted, part: LogPart | None) -> None:
        if self._open.pop(asked.id, None) is None:
            return
        if self._same.get(asked.what) is asked:
            del self._same[asked.what]
        asked.member.log_asks.pop(asked.id, None)
        asked.part.set_result(part)


def _marks_of(chunk: LogChunk, begin: int, end: int) -> list[tuple[int, int, int]]:
    """The marks of the bytes from ``begin`` up to ``end``, with the one that holds at ``begin``."""
    before = [mark for mark in chunk.marks if mark[0] <= begin]
    return before[-1:] + [mark for mark in chunk.marks if begin < mark[0] < end]


def waited(asked: Future[LogPart | None] | None, wait_s: float) -> LogPart | None:
    """The answer, if it comes in time."""
    try:
        return None if asked is None else asked.result(wait_s)
    except TimeoutError:
        return None


def _mark(folder: str, stream: str) -> str:
    return f"{folder}/whole.{stream}"


def _segments(folder: str, stream: str) -> list[tuple[int, int]]:
    """The start and the size of each segment, in order."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(stream + "."))
    return [(int(name.rpartition(".")[2]), os.stat(f"{folder}/{name}").st_size) for name in names]
