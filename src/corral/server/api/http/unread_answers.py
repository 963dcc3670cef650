"""Writing answers: parts written in one turn of the loop are sent together; clients that do not read are disconnected.

What was written stays in memory until the client reads it, and closing a connection waits for that as well. Without
this module a client that never reads would be kept for ever. All unread data is bounded together. Knows transports,
bytes and times; nothing about HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

log = structlog.get_logger(__name__)

_LARGE = 64 << 10  # more than this is written immediately, and then the total of unread data is checked
_PROGRESS = 16 << 10  # bytes that a client must read between two checks, unless less is left


class Unread:
    """All connections with unread data. ``send_s``: how long a client may read nothing."""

    def __init__(self, send_s: float, bytes_max: int) -> None:
        self.send_s, self.bytes_max = send_s, bytes_max
        self.waiting: set[WatchedTransport] = set()

    def forget(self, transport: Any) -> None:
        self.waiting.discard(transport)

    def relieve(self) -> None:
        """Disconnect the clients with the most unread data until the total is within its bound."""
        sizes = {each: each.get_write_buffer_size() for each in self.waiting}
        excess = sum(sizes.values()) - self.bytes_max
        for transport in sorted(sizes, key=lambda each: sizes[each], reverse=True):
            if excess <= 0:
                return
            excess -= sizes[transport]
            transport.cut_off("clients have too many unread responses")


class WatchedTransport:
    """A transport that checks whether the client reads what was written.

    Otherwise equivalent to the transport itself; for speed it differs in when it writes: a head and its body are
    written by one system call, and the client wakes up once.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, unread: Unread) -> None:
        self._transport = transport
        self._loop = loop
        self._unread = unread
        self.is_closing = transport.is_closing
        self._parts: list[bytes] = []  # of this turn of the loop
        self._size = 0  # their bytes
        self._written = 0
        self._taken = 0  # bytes read by the client at the last check
        self._due = 0  # bytes that it must read until the next check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _LARGE:
            self._flush()
            self._unread.relieve()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self._size = 0
        if not parts or self.is_closing():
            return
        data = b"".join(parts)
        self._written += len(data)
        self._transport.write(data)
        if self not in self._unread.waiting:
            self._unread.waiting.add(self)
            self._look_later(len(data))

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _look_later(self, waits: int) -> None:
        self._taken, self._due = self._written - waits, min(waits, _PROGRESS)
        self._loop.call_later(self._unread.send_s, self._look)

    def _look(self) -> None:
        if self not in self._unread.waiting:
            return  # the connection is gone
        waits = self._transport.get_write_buffer_size()
        if waits == 0:
            self._unread.forget(self)
        elif self._written - waits < self._taken + self._due:
            self.cut_off("the client does not read its responses")
        else:
            self._look_later(waits)

    def cut_off(self, why: str) -> None:
        self._unread.forget(self)
        log.info("connection_cut_off", why=why, client=str(self._transport.get_extra_info("peername"))[:60])
        self._transport.abort()
