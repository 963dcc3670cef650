"""What a standby server answers itself, and where it redirects the rest.

Knows methods and paths, and which server leads. Redirected requests are not inspected: the leader decides about them.
``Switch`` is the one application that is served; what is behind it changes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

import corral
from corral.server.api.http.endpoint import send_problem, send_reply
from corral.server.api.http.problems import ApiError
from corral.server.ha.vitals import WAITS_FOR, Vitals
from corral.wire.api import HealthView

_WAIT = {"Retry-After": "1"}
#: Answered even by a standby that is out of date.
_ALWAYS = ("/v1/health", "/v1/openapi.json", "/v1/docs")
#: Reads that need the leader: its planner, the logs of tasks, what they do and did, and its gateway.
_NEEDS_LEADER = re.compile(r"/v1/jobs/[^/]+/(why|logs|output|activity)|/v1/(activity|line|series)|/v1/agent/endpoint")


class Switch:
    """An application that can be replaced while it is served. Requests that are cancelled because the server shuts down
    get an error answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        def noted(message: Message) -> Awaitable[None]:
            nonlocal has_begun
            has_begun = True
            return send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if has_begun or scope["type"] != "http":
                raise
            why = "the server is shutting down; the request may or may not have been completed"
            await send_problem(send, ApiError(503, "going_down", why, "try again", headers=_WAIT), "-")


class Starting:
    """The application of a server that is starting: it answers only health checks. ``database``: one word for its
    problem; "" if none is known."""

    def __init__(self, database: Callable[[], str] = lambda: "") -> None:
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["type"] != "http":
            return
        wrong = self._database()
        waits_for = WAITS_FOR.get(wrong, "")
        if scope["path"] == "/v1/health":
            health = HealthView(
                status="starting",
                version=corral.__version__,
                role="standby" if wrong else "leader",
                database=wrong,
                waits_for=waits_for,
                following=not wrong,
            )
            await send_reply(send, 200, health, "-")
        elif wrong:
            await send_problem(send, _no_database(waits_for), "-")
        else:
            starting = ApiError(503, "not_ready", "the server is starting", "try again", headers=_WAIT)
            await send_problem(send, starting, "-")


class Redirect:
    """The application of a standby. ``leader``: the URL of the leader; "" if none is known. ``vitals``: the health of
    this server, and whether it is up to date."""

    def __init__(self, app: ASGIApp, leader: Callable[[], str], vitals: Callable[[], Vitals] = Vitals) -> None:
        self._app = app
        self._leader = leader
        self._vitals = vitals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
        elif not (vitals := self._vitals()).following:
            await send_problem(send, _no_database(vitals.waits_for), "-")
        elif is_answered_here(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
        else:
            await send_problem(send, _elsewhere(self._leader(), scope), "-")


def is_answered_here(method: str, path: str) -> bool:
    if path == "/v1/session":
        return True  # a standby has sessions of its own
    return method in ("GET", "HEAD", "OPTIONS") and not _NEEDS_LEADER.fullmatch(path)


def _no_database(waits_for: str) -> ApiError:
    why = f"this server waits for {waits_for or 'its database'}"
    return ApiError(503, "no_database", why, "try another server, or retry later", headers=_WAIT)


def _elsewhere(leader: str, scope: Scope) -> ApiError:
    if not leader:
        hint = "another server takes over in a few seconds: try again"
        return ApiError(503, "no_leader", "there is no leader at present", hint, headers=_WAIT)
    if any(name == b"sec-fetch-mode" for name, _ in scope["headers"]):  # a page may not read from another address
        where_to = f"open the dashboard of the leader: {leader}/"
        return ApiError(503, "not_leader", "this server is a standby, and this needs the leader", where_to)
    target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    where = f"{leader}{target}" + (f"?{query}" if query else "")
    return ApiError(
        307, "not_leader", f"the leader is {leader}", f"send the request to {leader}", headers={"Location": where}
    )
