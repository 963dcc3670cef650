"""Sends logs to the server: parts that a user reads, and the end of the log of every task that has ended.

While the server is away, logs stay on the disk of this machine. Knows the runtime as a `Backend`.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from corral.agent.observed import Observed
from corral.agent.server_connection import NoAnswer, Refused, ServerConnection
from corral.remote.messages import LogAsk, LogChunk, LogDelivery, LogReply
from corral.runtime.base import Backend, TaskKey

_log = logging.getLogger(__name__)
_STREAMS = ("stdout", "stderr")
_AT_ONCE = 128 << 10  # renewals go in between, but the server holds the whole message in memory
_TASKS_AT_ONCE = 64
KEPT_BYTES = 4 << 20  # of the end of each stream
_RETRY_S = 1.0


class LogTransfer:
    """``done`` is called for every task whose log the server has."""

    def __init__(
        self, node: str, backend: Backend, server: ServerConnection, observed: Observed, done: Callable[[TaskKey], None]
    ) -> None:
        self._node = node
        self._backend = backend
        self._server = server
        self._observed = observed
        self._done = done
        self._asked: deque[LogAsk] = deque()
        self._to_send: OrderedDict[TaskKey, None] = OrderedDict()
        self._wake, self._is_over = threading.Event(), False
        self._lock = threading.Lock()

    def answer(self, asks: Sequence[LogAsk]) -> None:
        if asks:
            self._asked.extend(asks)
            self._wake.set()

    def send_log(self, key: TaskKey) -> None:
        with self._lock:
            self._to_send[key] = None
        self._wake.set()

    @property
    def is_busy(self) -> bool:
        """Whether the server still lacks the logs of some tasks that have ended."""
        with self._lock:
            return bool(self._to_send)

    def stop(self) -> None:
        self._is_over = True
        self._wake.set()

    def run(self) -> None:
        while not self._is_over:
            self._wake.wait()
            self._wake.clear()
            try:
                while (self._asked or self._to_send) and not self._is_over:
                    self._answer_all()
                    self._send_some()
            except (NoAnswer, Refused) as lost:
                _log.info("logs not sent, retrying: %s", lost)
                threading.Event().wait(_RETRY_S)
                self._wake.set()
            except Exception:
                _log.exception("log transfer failed; retrying")
                threading.Event().wait(_RETRY_S)
                self._wake.set()

    def _answer_all(self) -> None:
        replies, size = list[LogReply](), 0
        while self._asked and size < _AT_ONCE:
            ask = self._asked.popleft()
            part = self._backend.read_log(ask.key, ask.stream, ask.offset, min(ask.limit, _AT_ONCE))
            replies.append(LogReply(ask.id, part))
            size += 0 if part is None else len(part.data)
        if replies:
            self._server.logs(LogDelivery(node=self._node, replies=tuple(replies)))

    def _send_some(self) -> None:
        """Send many small logs in one message, and a large one in pieces."""
        with self._lock:
            keys = list(self._to_send)[:_TASKS_AT_ONCE]
        small: list[LogChunk] = []
        whole: list[TaskKey] = []
        size = 0
        for key in keys:
            first = [chunk for stream in _STREAMS if (chunk := self._chunk(key, stream, -KEPT_BYTES)) is not None]
            for chunk in first:
                if not chunk.is_over:
                    self._send_rest(chunk)
            small += [chunk for chunk in first if chunk.is_over]
            size += sum(len(chunk.data) for chunk in first)
            whole.append(key)
            if size > _AT_ONCE:
                break
        if small:
            self._server.logs(LogDelivery(node=self._node, chunks=tuple(small)))
        for key in whole:
            with self._lock:
                self._to_send.pop(key, None)
            self._done(key)

    def _send_rest(self, chunk: LogChunk | None) -> None:
        while chunk is not None and not self._is_over:
            self._server.logs(LogDelivery(node=self._node, chunks=(chunk,)))
            if chunk.is_over or not chunk.data:
                return
            chunk = self._chunk(chunk.key, chunk.stream, chunk.offset + len(chunk.data))

    def _chunk(self, key: TaskKey, stream: str, offset: int) -> LogChunk | None:
        """None: the task wrote nothing to this stream."""
        part = self._backend.read_log(key, stream, offset, _AT_ONCE)
        if part is None or (part.is_over and part.next_offset == 0):
            return None
        return LogChunk(key, stream, part.offset, part.data, part.is_over, part.marks)
