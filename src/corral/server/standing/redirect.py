"""What a server that does not lead answers itself, and where it sends the rest.

Knows methods and paths, and who leads. A request that it sends on was not looked into: whoever leads decides about it.
``Switch`` is the one application that is served, whatever stands behind it at the moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.server.api.entry.door import send_problem
from corral.server.api.entry.problems import Unable

#: Of what is read, these need the leader: its planner, and the logs of tasks.
_NEEDS_LEADER = re.compile(r"/v1/jobs/[^/]+/(why|logs)")


class Switch:
    """An application that can be exchanged while it is served."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Starting:
    """Nobody can be answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["type"] == "http":
            wait = {"Retry-After": "1"}
            await send_problem(send, Unable(503, "not_ready", "the server is starting", "try again", headers=wait), "-")


class Redirect:
    """``leader``: where the leader answers; "" while there is none that is known."""

    def __init__(self, app: ASGIApp, leader: Callable[[], str]) -> None:
        self._app, self._leader = app, leader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_answered_here(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        await send_problem(send, _elsewhere(self._leader(), scope), "-")


def is_answered_here(method: str, path: str) -> bool:
    return method in ("GET", "HEAD", "OPTIONS") and not _NEEDS_LEADER.fullmatch(path)


def _elsewhere(leader: str, scope: Scope) -> Unable:
    if not leader:
        hint = "another server takes over in a few seconds: try again"
        return Unable(503, "no_leader", "no server leads at the moment", hint, headers={"Retry-After": "1"})
    target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    where = f"{leader}{target}" + (f"?{query}" if query else "")
    return Unable(307, "not_leader", f"the server at {leader} leads", f"ask {leader}", headers={"Location": where})
