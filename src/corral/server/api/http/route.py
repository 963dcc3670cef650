"""A route as data: method, path, parameters, body, answer and handler.

Values only. The table is in ``api.routes``; the endpoint serves it, and ``openapi`` describes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from msgspec import Struct

from corral.server.api.http.request import ApiRequest, Reply
from corral.server.auth import Verb

Handler = Callable[[ApiRequest], Awaitable[Reply]]


class RouteAccess(Enum):
    """What a client needs to reach the handler. The handler checks the rights on each thing."""

    OPEN = "open"  # nothing
    TOKEN = "token"  # a valid token
    SIGN_IN = "sign in"  # what the body has: a token or a code
    METRICS = "metrics"  # as TOKEN; or nothing on this machine, if the settings allow it


class BodyKind(Enum):
    """What the body of a request is."""

    NONE = "none"
    SHAPE = "shape"  # JSON of the type that the route names
    DOCUMENT = "document"  # a job document, parsed by the handler
    BATCH = "batch"  # many job documents


class Route(Struct, frozen=True, kw_only=True):
    """One route. ``statuses``: of its errors, beyond those that every route shares."""

    method: str
    path: str
    summary: str
    handler: Handler
    verb: Verb | None = None
    access: RouteAccess = RouteAccess.TOKEN
    kind: BodyKind = BodyKind.NONE
    body: type[Any] | None = None
    query: type[Any] | None = None
    answer: type[Any] | str | None = None  # a type, a media type, or nothing
    status: int = 200
    statuses: tuple[int, ...] = ()
    instead: type[Any] | None = None  # its other answer, with status 200 (of a dry run)
    tag: str = ""
    also: tuple[str, ...] = ()  # other media types that the client may accept
    item: type[Any] | None = None  # of a stream of server-sent events: the type of the data of each
    about: str = ""
    example: Any = None

    @property
    def name(self) -> str:
        """Stable: the operation id, and the label of its metrics."""
        words = [part.strip("{}").partition(":")[0] for part in self.path.removeprefix("/v1").split("/") if part]
        return "_".join([self.method.lower(), *words]).replace(".", "_")
