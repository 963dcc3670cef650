"""The connection of one agent in the gateway: framing, identity and limits.

A renewal is answered immediately, before anything else that waits to be sent. All other messages are forwarded. Knows
nothing about what is in a report.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

import msgspec

from corral.remote import frames
from corral.remote.messages import Hello, LeaseAnswer, No, Renewal
from corral.server.gateway.roster import NodeCredential

_MESSAGES_PER_S = 1_000
_BUFFER_BYTES = 32 << 10  # beyond this other messages wait here, so that a lease is never queued behind them
_UNREAD_BYTES_MAX = 1 << 20  # of an agent that sends and does not read
_ONLY_HELLO = {frames.HELLO: frames.FROM_AGENTS[frames.HELLO]}
_hello, _renewal = msgspec.json.Decoder(Hello), msgspec.json.Decoder(Renewal)
_encode = msgspec.json.Encoder().encode


class ConnectionOwner(Protocol):
    """What a connection needs of the gateway."""

    def now_s(self) -> float: ...
    def greet(self, connection: AgentConnection, hello: Hello) -> No | None: ...
    def renew(self, connection: AgentConnection, asked: Renewal) -> LeaseAnswer | No: ...
    def forward(self, connection: AgentConnection, kind: bytes, body: bytes) -> None: ...
    def hold(self, more: int) -> bool:
        """Whether there is room for this many more bytes of incomplete messages."""

    def is_over(self, connection: AgentConnection) -> None: ...


class AgentConnection(asyncio.Protocol):
    """One connection. ``node`` is empty until the agent has proved which node it is."""

    def __init__(self, owner: ConnectionOwner, number: int, address: str) -> None:
        self.number = number
        self.address = address
        self.node = ""
        self.credential: NodeCredential | None = None
        self.last: Renewal | None = None
        self.in_flight: set[bytes] = set()  # kinds of messages that the server has not answered yet
        self.heard_s = self.began_s = owner.now_s()
        self._owner = owner
        self._transport: Any = None
        self._assembly = frames.Assembly(_ONLY_HELLO)
        self._held = 0
        self._waiting: deque[bytes] = deque()
        self._is_full = self._is_ending = False
        self._second, self._count = 0, 0

    # --- the transport ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        if self._is_ending:  # refused before the connection was established
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self.heard_s = self._owner.now_s()
        try:
            for kind, body in self._assembly.feed(data):
                self._take(kind, body)
        except (frames.BadFrame, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            self.disconnect(No(400, "bad_message", str(wrong)[:200]))
        held = self._assembly.held
        if held > self._held and not self._owner.hold(held - self._held):
            self.disconnect(No(503, "busy", "the gateway is receiving too much data; try again"))
        elif held < self._held:
            self._owner.hold(held - self._held)
        self._held = held

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_ending = True
        self._owner.hold(-self._held)
        self._held = 0
        self._owner.is_over(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        while self._waiting and not self._is_full:
            self._transport.write(self._waiting.popleft())

    # --- messages -----------------------------------------------------------------------------------------------------

    def _take(self, kind: bytes, body: bytes) -> None:
        if self._is_ending:
            return
        self._count_message()
        if kind == frames.RENEW:
            self._renew(_renewal.decode(body))
        elif kind == frames.HELLO and not self.node:
            hello = _hello.decode(body)
            no = self._owner.greet(self, hello)
            if no is not None:
                self.disconnect(no)
                return
            self._assembly = frames.Assembly(frames.FROM_AGENTS)
            self.tell(frames.WELCOME, b"{}")
        elif kind == frames.HELLO:
            raise frames.BadFrame("the agent has identified itself already")
        else:
            self._owner.forward(self, kind, body)

    def _count_message(self) -> None:
        second = int(self.heard_s)
        self._count = 1 if second != self._second else self._count + 1
        self._second = second
        if self._count > _MESSAGES_PER_S:
            raise frames.BadFrame(f"more than {_MESSAGES_PER_S} messages per second")

    def _renew(self, asked: Renewal) -> None:
        answer = self._owner.renew(self, asked)
        if isinstance(answer, No):
            self.disconnect(answer)
            return
        self.last = asked
        self.tell_lease(answer)

    def tell_lease(self, answer: LeaseAnswer) -> None:
        """Send a lease immediately, before all waiting messages."""
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

    def disconnect(self, no: No) -> None:
        """Send the error and close the connection."""
        if self._is_ending:
            return
        if self._transport is not None:
            self.tell(frames.REFUSED, _encode(no))
            self._is_ending = True
            self._transport.close()
        self._is_ending = True
