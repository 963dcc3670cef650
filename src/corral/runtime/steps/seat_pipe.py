"""One process in a task, with a pipe to it and from it: for ports, copies and terminals that a program wants to hold.

The connection may break; it is made again and continues at the same byte. One thread for each; knows bytes only.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

from corral.runtime.steps import step_frames as frames
from corral.runtime.steps.seat_link import NotReachable, SeatLink, StepRefused, find_patiently

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.runtime.steps.seat_link import SeatFinder

_CHUNK = 64 << 10
_HELD_MAX = 1 << 20
_ERRORS_MAX = 1 << 16
_CONNECT_S = 30.0
_RETRY_S = 0.25


class SeatPipe:
    """``errors``: what the process wrote to its standard error."""

    def __init__(self, finder: SeatFinder, seat: int, command: list[str]) -> None:
        start: dict[str, Any] = {"command": command, "env": None, "directory": "", "processes": [{}], "input": True}
        self._link = SeatLink(seat, f"in-{os.urandom(8).hex()}.0", start, 1)
        self._finder = finder
        self._held, self._outgoing = bytearray(), bytearray()
        self._base = self._sent = 0
        self._is_over = self._is_end_sent = False
        self._connection: object = None
        self.errors = bytearray()

    def run(self, source: int, sink: int) -> int:
        """Copy from ``source`` to the process and from it to ``sink``, until it has ended. Returns its exit code.
        Raises `StepRefused`, and OSError if the sink is gone."""
        os.set_blocking(sink, False)
        link = self._link
        link.connect(find_patiently(self._finder, link.seat, _CONNECT_S))
        try:
            while not link.is_over or self._outgoing:
                self._turn(source, sink)
        finally:
            link.close()
        return link.codes[0] or 0

    def _turn(self, source: int, sink: int) -> None:
        link, poll = self._link, select.poll()
        if link.sock is not None and len(self._outgoing) < _HELD_MAX and not link.is_over:
            poll.register(link.sock, select.POLLIN | (select.POLLOUT if link.out else 0))
        if not self._is_over and len(self._held) < frames.WINDOW:
            poll.register(source, select.POLLIN)
        if self._outgoing:
            poll.register(sink, select.POLLOUT)
        ready = dict(poll.poll(100 if link.sock is None else 5_000))
        if source in ready:
            self._read(source)
        if link.sock is not None and (event := ready.get(link.sock.fileno(), 0)):
            if event & select.POLLOUT:
                link.flush()
            if event & ~select.POLLOUT:
                self._receive()
        if self._outgoing:
            with suppress(BlockingIOError):
                del self._outgoing[: os.write(sink, self._outgoing[:_CHUNK])]
        self._feed()
        self._reconnect()

    def _read(self, source: int) -> None:
        try:
            more = os.read(source, _CHUNK)
        except BlockingIOError:  # it shares its flags with a sink
            return
        self._held += more
        self._is_over = not more

    def _receive(self) -> None:
        if self._link.sock is None:
            return
        for _, stream, data in self._link.receive():
            if stream == 1:
                self._outgoing += data
            elif len(self.errors) < _ERRORS_MAX:
                self.errors += data
        self._link.acknowledge()

    def _feed(self) -> None:
        link = self._link
        if link.taken[0] > self._base:
            del self._held[: link.taken[0] - self._base]
            self._base = link.taken[0]
        if not link.is_started or link.sock is None:
            return
        if self._connection is not link.sock:
            self._connection = link.sock
            self._sent, self._is_end_sent = self._base, False
        while self._sent < self._base + len(self._held) and link.sock is not None:
            begin = self._sent - self._base
            piece = bytes(self._held[begin : begin + _CHUNK])
            link.send(frames.data(frames.INPUT, 0, 0, self._sent, piece))
            self._sent += len(piece)
        if self._is_over and not self._is_end_sent:
            self._is_end_sent = True
            link.send(frames.data(frames.INPUT, 0, 0, self._sent))

    def _reconnect(self) -> None:
        link, now = self._link, time.monotonic()
        if link.sock is not None or link.is_over or now < link.retry_at:
            return
        if now - link.broken_at > frames.DETACHED_S:
            raise StepRefused(f"task {link.seat} has not answered for {frames.DETACHED_S:g} s", is_lost=True)
        try:
            link.connect(self._finder.find(link.seat))
        except (NotReachable, OSError):
            link.retry_at = now + _RETRY_S
