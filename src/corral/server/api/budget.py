"""How many connections people may have to the server, and what happens beyond: an answer that says so.

Some are held back, so that whoever comes to a full server is still answered: `/v1/health` as always, everything else
with a problem that says that it is busy. Beyond those, whoever has connected first and never said anything has to go.
Knows connections, and one path; agents have a way in of their own.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from corral.server.api.entry.door import send_problem
from corral.server.api.entry.problems import Unable

HELD_BACK = 128
_OWN_FILES = 256  # journal, readers, planner, tasks
HEALTH = "/v1/health"
_BUSY = Unable(
    503, "server_busy", "the server is busy: more connections are open than it was told to keep",
    "try again in a moment; an administrator can allow more (listen.connections)",
    headers={"Retry-After": "1", "Connection": "close"},
)  # fmt: skip


class ConnectionBudget:
    """An application that is answered by ``app`` as long as no more than ``most`` connections are open."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most
        self._open = 0
        self._silent: OrderedDict[Any, None] = OrderedDict()  # connections without a request so far, oldest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._open > self._most and scope["path"] != HEALTH:
            await send_problem(send, _BUSY, "-")
            return
        await self._app(scope, receive, send)

    def counted(self, protocol: type[HttpToolsProtocol]) -> type[HttpToolsProtocol]:
        """The protocol, with its connections counted here."""
        budget = self

        class Counted(protocol):  # type: ignore[valid-type, misc]
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                budget._open += 1
                budget._silent[self] = None
                if budget._open > budget._most + HELD_BACK:
                    next(iter(budget._silent)).transport.abort()

            def on_headers_complete(self) -> None:
                budget._silent.pop(self, None)
                super().on_headers_complete()

            def connection_lost(self, exc: Exception | None) -> None:
                budget._open -= 1
                budget._silent.pop(self, None)
                super().connection_lost(exc)

        return Counted


def connections_for(most: int) -> int:
    """So many that files are left for everything else, after asking for as many files as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + HELD_BACK + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, soft - HELD_BACK - _OWN_FILES)
