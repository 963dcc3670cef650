"""A route as data: what is asked by which method and path, what it takes, what it gives, who stands behind it.

Values only. The table itself is in ``table``, which is read by the door (to serve) and by ``openapi`` (to describe).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from msgspec import Struct

from corral.server.api.entry.asking import Ask, Reply
from corral.server.auth import Verb

Handler = Callable[[Ask], Awaitable[Reply]]


class Door(Enum):
    """Who is let in at all. What they may then do is for the handler to insist on, thing by thing."""

    OPEN = "open"  # everybody
    TOKEN = "token"  # whoever has a token that is good
    METRICS = "metrics"  # as TOKEN, or open on this machine where the settings say so


class Kind(Enum):
    """What a body is."""

    NONE = "none"
    SHAPE = "shape"  # JSON of the shape that is named
    DOCUMENT = "document"  # a job document, read by its handler
    BATCH = "batch"  # many of them
    WORD = "word"  # of an agent: JSON of the shape that is named, perhaps long, read by its handler


class Route(Struct, frozen=True, kw_only=True):
    """``statuses`` are those of its problems beyond the ones that every route shares."""

    method: str
    path: str
    summary: str
    handler: Handler
    verb: Verb | None = None
    door: Door = Door.TOKEN
    kind: Kind = Kind.NONE
    body: type[Any] | None = None
    query: type[Any] | None = None
    answer: type[Any] | str | None = None  # a shape, a media type, or nothing
    status: int = 200
    statuses: tuple[int, ...] = ()
    instead: type[Any] | None = None  # what it answers with status 200 when that is not its own
    tag: str = ""
    also: tuple[str, ...] = ()  # other media types that it can answer with
    about: str = ""
    example: Any = None

    @property
    def name(self) -> str:
        """Stable: the operation id, and the label of its metrics."""
        words = [part.strip("{}").partition(":")[0] for part in self.path.removeprefix("/v1").split("/") if part]
        return "_".join([self.method.lower(), *words]).replace(".", "_")
