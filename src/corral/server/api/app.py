"""The API as one ASGI application: the routes with their endpoints.

Knows how the parts fit. The routes are in ``routes``, HTTP is in ``http``, the handlers are in ``handlers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from urllib.parse import unquote

import msgspec
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from corral.server.api.docs_page import PAGE, POLICY
from corral.server.api.http.contracts import Service
from corral.server.api.http.endpoint import Endpoint, EndpointContext
from corral.server.api.http.request import ApiRequest, Content, Reply, Shared
from corral.server.api.http.route import Route, RouteAccess
from corral.server.api.http.settings import ApiSettings
from corral.server.api.openapi import describe
from corral.server.api.routes import ROUTES
from corral.server.api.ui import assets
from corral.server.metrics import Metrics
from corral.wire.api import PageParameters


class Api:
    """The application. ``close`` ends its streams, so that the server can shut down without waiting for them."""

    def __init__(self, service: Service, settings: ApiSettings, metrics: Metrics, routes: Sequence[Route]) -> None:
        self.shared = Shared(service, settings, metrics)
        self.metrics = metrics
        context = EndpointContext(self.shared)
        self.streams = context.streams
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        paths = [Path(path, Endpoint(context, found, path), methods=None) for path, found in by_path.items()]
        self._router = Router(paths, redirect_slashes=False, default=Endpoint(context, {}, "none"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _keep_role(scope)
            await self._router(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def close(self) -> None:
        self.shared.close()


def _keep_role(scope: Scope) -> None:
    """The name of a job may have a role after a slash, sent as ``35%2Ftrainer``. Servers decode it; here it stays one
    part of the path, as ``35:trainer``, which means the same."""
    raw = scope.get("raw_path") or b""
    if raw.startswith(b"/v1/jobs/") and b"%2f" in raw.lower():
        scope["path"] = unquote(raw.replace(b"%2F", b":").replace(b"%2f", b":").decode("latin-1"))


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def make_app(service: Service, settings: ApiSettings | None = None, metrics: Metrics | None = None) -> Api:
    """Build the application. The caller must pass every durable event to ``metrics``; by default they start empty."""
    return Api(
        service,
        settings or ApiSettings(),
        metrics or Metrics(service.state, service.now_ms()),
        all_routes(),
    )


@cache
def all_routes() -> tuple[Route, ...]:
    """The routes, and those that describe them."""
    description = msgspec.json.encode(describe(ROUTES))
    page = PAGE.encode()

    async def openapi(request: ApiRequest) -> Reply:  # noqa: ARG001 - the same for all clients
        return Content(description, "application/json")

    async def docs(request: ApiRequest) -> Reply:  # noqa: ARG001
        return Content(page, "text/html; charset=utf-8", (("Content-Security-Policy", POLICY),))

    about = {"tag": "server", "access": RouteAccess.OPEN}
    return (
        *ROUTES,
        Route(
            method="GET",
            path="/v1/openapi.json",
            handler=openapi,
            summary="This description",
            answer=None,
            **about,  # type: ignore[arg-type]
        ),
        Route(
            method="GET",
            path="/",
            handler=assets.page,
            summary="The dashboard",
            query=PageParameters,
            answer=None,
            **about,  # type: ignore[arg-type]
        ),
        Route(
            method="GET",
            path="/ui/{version}/{file:path}",
            handler=assets.asset,
            summary="A file of the dashboard",
            answer=None,
            **about,  # type: ignore[arg-type]
        ),
        Route(method="GET", path="/v1/docs", handler=docs, summary="This page", answer=None, **about),  # type: ignore[arg-type]
    )
