"""One agent's connection, as the gateway has it: bytes in, messages out, who it is and how much it may say.

A renewal is answered at once, by itself and before anything else that is to be said on the connection. Everything else
is handed on. Knows nothing of what is in a report.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

import msgspec

from corral.backends.fleet import frames
from corral.backends.fleet.messages import Hello, LeaseAnswer, No, Renewal
from corral.server.gateway.roster import Credential

_MESSAGES_PER_S = 1_000
_BUFFER_BYTES = 32 << 10  # beyond, what can wait waits here, so that a lease is never behind it
_UNREAD_BYTES_MAX = 1 << 20  # of an agent that asks and does not read
_ONLY_HELLO = {frames.HELLO: frames.FROM_AGENTS[frames.HELLO]}
_hello, _renewal = msgspec.json.Decoder(Hello), msgspec.json.Decoder(Renewal)
_encode = msgspec.json.Encoder().encode


class House(Protocol):
    """Whoever keeps the connections."""

    def now_s(self) -> float: ...
    def greet(self, connection: Connection, hello: Hello) -> No | None: ...
    def renew(self, connection: Connection, asked: Renewal) -> LeaseAnswer | No: ...
    def hand_on(self, connection: Connection, kind: bytes, body: bytes) -> None: ...
    def hold(self, more: int) -> bool:
        """Whether there is room for so many more bytes of messages that are not whole."""
        ...

    def is_over(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """``node`` is empty until the agent has proved for which one it speaks."""

    def __init__(self, house: House, number: int, address: str) -> None:
        self.number, self.address, self.node = number, address, ""
        self.credential: Credential | None = None
        self.last: Renewal | None = None
        self.in_flight: set[bytes] = set()  # kinds of which the server owes an answer
        self.heard_s = self.began_s = house.now_s()
        self._house = house
        self._transport: Any = None
        self._assembly = frames.Assembly(_ONLY_HELLO)
        self._held = 0
        self._waiting: deque[bytes] = deque()
        self._is_full = self._is_ending = False
        self._second, self._count = 0, 0

    # --- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        if self._is_ending:  # put out before it was there
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self.heard_s = self._house.now_s()
        try:
            for kind, body in self._assembly.feed(data):
                self._take(kind, body)
        except (frames.BadFrame, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            self.put_out(No(400, "bad_message", str(wrong)[:200]))
        held = self._assembly.held
        if held > self._held and not self._house.hold(held - self._held):
            self.put_out(No(503, "busy", "too much is under way; try again"))
        elif held < self._held:
            self._house.hold(held - self._held)
        self._held = held

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_ending = True
        self._house.hold(-self._held)
        self._held = 0
        self._house.is_over(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        while self._waiting and not self._is_full:
            self._transport.write(self._waiting.popleft())

    # --- what is said -------------------------------------------------------------------------------------------------

    def _take(self, kind: bytes, body: bytes) -> None:
        if self._is_ending:
            return
        self._count_message()
        if kind == frames.RENEW:
            self._renew(_renewal.decode(body))
        elif kind == frames.HELLO and not self.node:
            hello = _hello.decode(body)
            no = self._house.greet(self, hello)
            if no is not None:
                self.put_out(no)
                return
            self._assembly = frames.Assembly(frames.FROM_AGENTS)
            self.tell(frames.WELCOME, b"{}")
        elif kind == frames.HELLO:
            raise frames.BadFrame("it has said who it is before")
        else:
            self._house.hand_on(self, kind, body)

    def _count_message(self) -> None:
        second = int(self.heard_s)
        self._count = 1 if second != self._second else self._count + 1
        self._second = second
        if self._count > _MESSAGES_PER_S:
            raise frames.BadFrame(f"more than {_MESSAGES_PER_S} messages in a second")

    def _renew(self, asked: Renewal) -> None:
        answer = self._house.renew(self, asked)
        if isinstance(answer, No):
            self.put_out(answer)
            return
        self.last = asked
        self.tell_lease(answer)

    def tell_lease(self, answer: LeaseAnswer) -> None:
        """At once, whatever else waits."""
        if not self._is_ending and self._transport.get_write_buffer_size() < _UNREAD_BYTES_MAX:
            self._transport.write(next(frames.pieces(frames.LEASE, _encode(answer))))

    def tell(self, kind: bytes, body: bytes) -> None:
        if self._is_ending:
            return
        for piece in frames.pieces(kind, body):
            if self._is_full:
                self._waiting.append(piece)
            else:
                self._transport.write(piece)

    def put_out(self, no: No) -> None:
        """Say why, and hang up."""
        if self._is_ending:
            return
        if self._transport is not None:
            self.tell(frames.REFUSED, _encode(no))
            self._is_ending = True
            self._transport.close()
        self._is_ending = True
