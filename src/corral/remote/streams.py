"""Connections to tasks that the server has asked agents for. Sent to a node together with its orders.

An agent that gets a ticket connects to the API with it, and the request that waits has the connection. Knows tickets.
"""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from typing import Any

from msgspec import Struct

from corral.remote.messages import StreamAsk
from corral.remote.node_session import NodeSession
from corral.runtime.base import TaskKey

_OPEN_MAX = 10_000


class _StreamWanted(Struct):
    node: str
    until_ms: int
    found: Future[Any]


class StreamRequests:
    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms
        self._open: dict[str, _StreamWanted] = {}  # by ticket, the oldest first

    def ask(self, member: NodeSession | None, key: TaskKey, now_ms: int) -> Future[Any] | None:
        """None: there is no agent to ask. One that has not reported since this server began is asked again later."""
        for ticket, wanted in list(self._open.items()):
            if wanted.until_ms > now_ms and len(self._open) < _OPEN_MAX:
                break
            del self._open[ticket]
            wanted.found.cancel()
        if member is None or member.is_gone or not member.is_heard:
            return None
        ticket = secrets.token_hex(16)
        wanted = self._open[ticket] = _StreamWanted(member.name, now_ms + self._wait_ms, Future())
        member.stream_asks[ticket] = StreamAsk(ticket, key)
        member.wake()
        return wanted.found

    def redeem(self, node: str, ticket: str) -> Future[Any] | None:
        """The future that waits for the connection of this node; None: it is no longer wanted."""
        wanted = self._open.get(ticket)
        if wanted is None or wanted.node != node:
            return None
        del self._open[ticket]
        return wanted.found
