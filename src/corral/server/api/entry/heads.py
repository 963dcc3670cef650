"""How long a client may take over the head of a request: a connection that never says what it wants is given up.

The door sees a request only when its head is whole; before that there is nothing but the protocol, so this lies there.
Without it a few thousand idle connections would keep everyone else out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from corral.server.api.entry.problems import PROBLEM_TYPE, Unable

_TOO_SLOW = Unable(
    408, "head_too_slow", "the head of the request did not arrive in time", "send it whole, or connect again later"
)


def timed_heads(seconds: float) -> type[HttpToolsProtocol]:
    """The protocol of uvicorn, for clients that send a head within so many seconds."""

    class Timed(HttpToolsProtocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_head()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._patience is None:
                self._wait_for_head()

        def on_headers_complete(self) -> None:
            self._end_wait()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_wait()
            super().connection_lost(exc)

        def _wait_for_head(self) -> None:
            self._patience = self.loop.call_later(seconds, self._give_up)

        def _end_wait(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _give_up(self) -> None:
            self._patience = None
            if self.transport.is_closing():
                return
            before: Any = self.cycle  # None until the first request
            if before is None or before.response_complete:
                self.transport.write(_told())
            self.transport.close()

    return Timed


def _told() -> bytes:
    body = msgspec.json.encode(_TOO_SLOW.problem(""))
    head = f"HTTP/1.1 408 Request Timeout\r\ncontent-type: {PROBLEM_TYPE.decode()}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
