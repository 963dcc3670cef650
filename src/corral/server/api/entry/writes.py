"""Answers that nobody reads: a connection whose client takes nothing for a while is cut off, and all that waits to be
read is bounded together.

What was written lies in memory until the client takes it, and closing a connection waits for that as well: without this
a client that never reads would be kept for ever. Knows transports, bytes and times; nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

log = structlog.get_logger(__name__)

_LARGE = 64 << 10  # writes from this size on are worth looking at what waits altogether
_PROGRESS = 16 << 10  # bytes that a client has to take between two looks, unless less is left


class Unread:
    """All connections on which something waits to be read. ``send_s``: for how long a client may take nothing."""

    def __init__(self, send_s: float, bytes_max: int) -> None:
        self.send_s, self.bytes_max = send_s, bytes_max
        self.waiting: set[WatchedTransport] = set()

    def forget(self, transport: Any) -> None:
        self.waiting.discard(transport)

    def relieve(self) -> None:
        """Too much waits: those on which most of it waits go first."""
        sizes = {each: each.get_write_buffer_size() for each in self.waiting}
        excess = sum(sizes.values()) - self.bytes_max
        for transport in sorted(sizes, key=lambda each: sizes[each], reverse=True):
            if excess <= 0:
                return
            excess -= sizes[transport]
            transport.cut_off("all answers that wait to be read are too large together")


class WatchedTransport:
    """A transport, and a look at whether what was written is taken. Equivalent to the transport itself but for that."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, unread: Unread) -> None:
        self._transport, self._loop, self._unread = transport, loop, unread
        self._written = 0
        self._taken = 0  # at the last look
        self._due = 0  # what had to be taken by the next one

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        if self not in self._unread.waiting:
            self._unread.waiting.add(self)
            self._look_later(len(data))
        if len(data) > _LARGE:
            self._unread.relieve()

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
            self.cut_off("its client reads nothing")
        else:
            self._look_later(waits)

    def cut_off(self, why: str) -> None:
        self._unread.forget(self)
        log.info("connection_cut_off", why=why, client=str(self._transport.get_extra_info("peername"))[:60])
        self._transport.abort()
