"""Copies the output of a container from the container runtime to the task's log.

The runtime keeps no log of its own. It sends both streams over one connection, in frames: one byte for the stream,
three unused ones, four for the length (Docker's Engine API, "Attach to a container"). When the connection is lost while
the container runs, as when the runtime is restarted, it is opened again and the log says so. Knows frames.
"""

from __future__ import annotations

import select
import time

from corral.runtime.container.task.api import ContainerRuntime, ContainerRuntimeError, ResponseStream
from corral.runtime.local.task.streams import Stream as Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.runtime.container.task.api import Wait

_HEAD = 8
_RETRY_S = 1.0


class Output:
    """Must be opened before the container is started, so that nothing is missed."""

    def __init__(self, engine: ContainerRuntime, container: str, logs: list[Log], wait: Wait | None = None) -> None:
        self._engine, self._logs = engine, logs
        self._path = f"/containers/{container}/attach?stream=1&stdout=1&stderr=1"
        self._stream: ResponseStream = engine.stream("POST", self._path, wait=wait)
        self.is_open = True
        self._head = b""
        self._left = 0  # of the present frame
        self._log = logs[0]
        self._retry_at = 0.0
        self._sort(self._stream.read())

    def fileno(self) -> int:
        return self._stream.fileno()

    def take(self) -> bool:
        """Read once what has arrived. False: there will be no more."""
        return self._sort(self._stream.read())

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._retry_at = time.monotonic() + _RETRY_S
            self._stream.close()

    def reopen(self) -> bool:
        """Reconnect after a loss. True: it is open again. Not at once: usually the container is just ending."""
        if time.monotonic() < self._retry_at:
            return False
        self._retry_at = time.monotonic() + _RETRY_S
        try:
            self._stream = self._engine.stream("POST", self._path, _RETRY_S)
        except ContainerRuntimeError:
            return False
        self.is_open = True
        self._head = b""
        self._left = 0
        self._logs[1].note("the connection to the container runtime was lost; the output since then is missing")
        return True

    def drain(self, patience_s: float) -> None:
        """Read until the runtime says that the output is complete, for at most this time."""
        until = time.monotonic() + patience_s
        poll = select.poll()
        if self.is_open:
            poll.register(self.fileno(), select.POLLIN)
        while self.is_open and (left := until - time.monotonic()) > 0:
            if not poll.poll(left * 1000) or not self.take():
                break
        self.close()

    def _sort(self, data: bytes | None) -> bool:
        if data is None:
            return True
        if not data:
            return False
        while data:
            if self._left == 0:
                need = _HEAD - len(self._head)
                self._head, data = self._head + data[:need], data[need:]
                if len(self._head) < _HEAD:
                    break
                self._log = self._logs[1 if self._head[0] == 2 else 0]
                self._left, self._head = int.from_bytes(self._head[4:8], "big"), b""
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            if part:
                self._log.keep(part)
        return True
