"""The limit on client connections, and the answer to clients beyond it.

Some connections are kept in reserve, so that clients of a full server still get an answer: `/v1/health` as always, all
other paths with the error that the server is busy. Beyond the reserve, the oldest connection without a request gets
the same error and is closed after a short time to read it. Knows connections, and one path; agents connect elsewhere.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.server.api.http.endpoint import send_problem
from corral.server.api.http.header_timeout import Bounded
from corral.server.api.http.problems import ApiError

HELD_BACK = 128
LEAVING_MAX = 128  # connections that were sent the error and have a short time to read it
_OWN_FILES = 256  # journal, readers, planner, tasks
HEALTH = "/v1/health"
_BUSY = ApiError(
    503,
    "server_busy",
    "the server has reached its limit of connections",
    "try again later; an administrator can raise the limit (listen.connections)",
    headers={"Retry-After": "1", "Connection": "close"},
)


class ConnectionBudget:
    """An ASGI application that passes requests to ``app`` while at most ``most`` connections are open."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most
        self._open = 0
        self._silent: OrderedDict[Bounded, None] = OrderedDict()  # connections without a request so far, oldest first
        self._leaving: OrderedDict[Bounded, None] = OrderedDict()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and self._open > self._most and scope["path"] != HEALTH:
            return send_problem(send, _BUSY, "-")
        return self._app(scope, receive, send)

    def _make_room(self) -> None:
        if self._open - len(self._leaving) > self._most + HELD_BACK and self._silent:
            oldest, _ = self._silent.popitem(last=False)
            self._leaving[oldest] = None
            oldest.refuse(_BUSY)
        if len(self._leaving) > LEAVING_MAX:
            next(iter(self._leaving)).transport.abort()

    def counted(self, protocol: type[Bounded]) -> type[Bounded]:
        """The protocol class, with its connections counted here."""
        budget = self

        class _Counted(protocol):  # type: ignore[valid-type, misc]
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                budget._open += 1
                budget._silent[self] = None
                budget._make_room()

            def on_headers_complete(self) -> None:
                budget._silent.pop(self, None)
                super().on_headers_complete()

            def connection_lost(self, exc: Exception | None) -> None:
                budget._open -= 1
                budget._silent.pop(self, None)
                budget._leaving.pop(self, None)
                super().connection_lost(exc)

        return _Counted


def connections_for(most: int) -> int:
    """The number of connections to allow, at most ``most``, so that enough files are left for everything else. Raises
    the limit of open files as far as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + HELD_BACK + LEAVING_MAX + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, soft - HELD_BACK - LEAVING_MAX - _OWN_FILES)
