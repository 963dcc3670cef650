"""The streams of one process of a step: what was read and is not acknowledged yet, and input that it has not taken.

Bounded: when a window is full, the pipe is not read any more, and the process waits as it would for a slow terminal.
Knows descriptors and offsets, not connections.
"""

from __future__ import annotations

import os

from corral.runtime.steps.step_frames import DATA_MAX, WINDOW

_EIO = 5  # the last process has closed a terminal


class Outlet:
    """Output of a process. ``acknowledged`` and ``sent``: offsets; what lies between them may have to be sent again."""

    def __init__(self, source: int) -> None:
        os.set_blocking(source, False)
        self.source = source
        self.acknowledged = 0
        self.sent = 0
        self.is_over = False
        self._held = bytearray()  # from the acknowledged offset on

    @property
    def end(self) -> int:
        return self.acknowledged + len(self._held)

    @property
    def has_room(self) -> bool:
        return not self.is_over and len(self._held) < WINDOW

    def pump(self) -> None:
        try:
            more = os.read(self.source, min(WINDOW - len(self._held), DATA_MAX))
        except BlockingIOError:
            return
        except OSError as fault:
            if fault.errno != _EIO:
                raise
            more = b""
        self._held += more
        self.is_over = not more

    def next_piece(self) -> tuple[int, bytes]:
        """The offset of what is to be sent next, and the bytes: none if all is sent."""
        at, begin = self.sent, self.sent - self.acknowledged
        piece = bytes(self._held[begin : begin + DATA_MAX])
        self.sent += len(piece)
        return at, piece

    def acknowledge(self, offset: int) -> None:
        if self.acknowledged < offset <= self.end:
            del self._held[: offset - self.acknowledged]
            self.acknowledged = offset
            self.sent = max(self.sent, offset)

    def resume(self, offset: int) -> None:
        """The client has all before this offset, and gets the rest again."""
        self.acknowledge(offset)
        self.sent = self.acknowledged


class Inlet:
    """Input for a process: bytes that it has not taken yet."""

    def __init__(self, sink: int) -> None:
        os.set_blocking(sink, False)
        self.sink = sink
        self.taken = 0  # offset up to which the process, or the pipe, has it
        self.is_closed = False
        self._held = bytearray()
        self._ends = False

    @property
    def is_waiting(self) -> bool:
        return not self.is_closed and (bool(self._held) or self._ends)

    def put(self, offset: int, more: bytes) -> None:
        """Take bytes, except those that were taken before a connection broke. No bytes: the end of the input."""
        known = self.taken + len(self._held)
        if self._ends or offset > known:
            return
        if not more:
            self._ends = offset == known
            return
        self._held += more[known - offset :][: WINDOW - len(self._held)]

    def flush(self) -> None:
        """Write what fits. Closes the pipe at the end of the input, or when no process reads it."""
        try:
            while self._held:
                count = os.write(self.sink, self._held[:DATA_MAX])
                del self._held[:count]
                self.taken += count
        except BlockingIOError:
            return
        except OSError:  # no process reads it: the rest is dropped, as in a pipe
            self.taken += len(self._held)
            self._held.clear()
            self._ends = True
        if self._ends:
            self.close()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self.sink)
