"""What a server that does not lead answers itself, and where it sends the rest.

Knows methods and paths, and who leads. A request that it sends on was not looked into: whoever leads decides about it.
``Switch`` is the one application that is served, whatever stands behind it at the moment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

import corral
from corral.server.api.entry.door import send_problem, send_reply
from corral.server.api.entry.problems import Unable
from corral.server.standing.vitals import WAITS_FOR, Vitals
from corral.wire.api import HealthView

_WAIT = {"Retry-After": "1"}
#: Told even by a server that does not know what is true.
_ALWAYS = ("/v1/health", "/v1/openapi.json", "/v1/docs")
#: Of what is read, these need the leader: its planner, the logs of tasks, and its gateway.
_NEEDS_LEADER = re.compile(r"/v1/jobs/[^/]+/(why|logs)|/v1/agent/endpoint")


class Switch:
    """An application that can be exchanged while it is served. Whoever is cut off because the server goes down is told
    so, in the form of every other problem."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if has_begun or scope["type"] != "http":
                raise
            why = "the server is going down, and does not know whether this has happened"
            await send_problem(send, Unable(503, "going_down", why, "try again", headers=_WAIT), "-")


class Starting:
    """Nobody can be answered yet, but for those who ask how it is doing. ``database``: one word for what is wrong
    with it, where there is one; "" while it is not known that anything is."""

    def __init__(self, database: Callable[[], str] = lambda: "") -> None:
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["type"] != "http":
            return
        wrong = self._database()
        waits_for = WAITS_FOR.get(wrong, "")
        if scope["path"] == "/v1/health":
            told = HealthView(
                status="starting", version=corral.__version__, role="standby" if wrong else "leader",
                database=wrong, waits_for=waits_for, following=not wrong,
            )  # fmt: skip
            await send_reply(send, 200, told, "-")
        elif wrong:
            await send_problem(send, _no_database(waits_for), "-")
        else:
            starting = Unable(503, "not_ready", "the server is starting", "try again", headers=_WAIT)
            await send_problem(send, starting, "-")


class Redirect:
    """``leader``: where the leader answers; "" while there is none that is known. ``vitals``: whether what is known
    here is true."""

    def __init__(self, app: ASGIApp, leader: Callable[[], str], vitals: Callable[[], Vitals] = Vitals) -> None:
        self._app, self._leader, self._vitals = app, leader, vitals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS:
            await self._app(scope, receive, send)
        elif not (vitals := self._vitals()).following:
            await send_problem(send, _no_database(vitals.waits_for), "-")
        elif is_answered_here(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
        else:
            await send_problem(send, _elsewhere(self._leader(), scope), "-")


def is_answered_here(method: str, path: str) -> bool:
    return method in ("GET", "HEAD", "OPTIONS") and not _NEEDS_LEADER.fullmatch(path)


def _no_database(waits_for: str) -> Unable:
    why = f"this server waits for {waits_for or 'its database'}"
    return Unable(503, "no_database", why, "ask another server, or try again", headers=_WAIT)


def _elsewhere(leader: str, scope: Scope) -> Unable:
    if not leader:
        hint = "another server takes over in a few seconds: try again"
        return Unable(503, "no_leader", "no server leads at the moment", hint, headers=_WAIT)
    target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    where = f"{leader}{target}" + (f"?{query}" if query else "")
    return Unable(307, "not_leader", f"the server at {leader} leads", f"ask {leader}", headers={"Location": where})
