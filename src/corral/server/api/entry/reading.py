"""From bytes to values: bodies within bounds of size and time, JSON without surprises, parameters with types.

Knows nothing of routes or rights. Whatever is wrong with what was sent is an ``Unable`` of status 400 to 415.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive

from corral.server.api.entry.problems import Unable, bad_json
from corral.server.api.entry.settings import ApiSettings

T = TypeVar("T")

_CLOSE = {"Connection": "close"}
_PARAMETERS_MAX = 100
_LIST_MAX = 100


class ClientGone(Exception):
    """Whoever asked has hung up. There is nobody to answer."""


class Bodies:
    """Reads bodies. All that are being read at one time are bounded together."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.held = 0

    async def read(self, receive: Receive, stated: int | None, most: int) -> bytes:
        """The whole body, or as little of it as shows that it is too long or too slow."""
        if stated is not None and stated > most:
            raise _too_long(most)
        first = await self._next(receive, asyncio.get_running_loop().time() + self.settings.body_timeout_s)
        if not first[1]:
            if len(first[0]) > most:
                raise _too_long(most)
            return first[0]
        return await self._rest(receive, first[0], most)

    async def _rest(self, receive: Receive, first: bytes, most: int) -> bytes:
        until_s = asyncio.get_running_loop().time() + self.settings.body_timeout_s
        parts, size, more = [first], len(first), True
        self.held += size
        try:
            while more:
                if size > most:
                    raise _too_long(most)
                if self.held > self.settings.bodies_bytes_max:
                    why = "too many requests are being read at this moment"
                    raise Unable(503, "too_busy", why, "try again", headers={"Retry-After": "1", **_CLOSE})
                part, more = await self._next(receive, until_s)
                parts.append(part)
                size, self.held = size + len(part), self.held + len(part)
            if size > most:
                raise _too_long(most)
        finally:
            self.held -= size
        return b"".join(parts)

    async def _next(self, receive: Receive, until_s: float) -> tuple[bytes, bool]:
        try:
            async with asyncio.timeout_at(until_s):
                message = await receive()
        except TimeoutError:
            why = f"the body did not arrive within {self.settings.body_timeout_s:g} s"
            raise Unable(408, "body_too_slow", why, headers=_CLOSE) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)


def _too_long(most: int) -> Unable:
    return Unable(413, "body_too_long", f"the body has more than {most} bytes", "send less at once", headers=_CLOSE)


def read_json(body: bytes) -> Any:
    """One JSON document; no key twice, nothing that is not JSON.

    Equivalent to reading with a check of every object for repeated keys. For speed it is read as it is, and only when
    writing it again gives another length (a key was lost, or something is written unusually) is every object looked at.
    """
    try:
        document = msgspec.json.decode(body)
        if len(msgspec.json.format(body, indent=-1)) != len(msgspec.json.encode(document)):
            json.loads(body, object_pairs_hook=_pairs)
    except RecursionError:
        raise bad_json("the document is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise bad_json(f"the document is not UTF-8: {error.reason}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise bad_json(_short(error)) from None
    return document


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return made


def read_body(body: bytes, shape: type[T]) -> T:
    """A body of a known shape. The first fault is told, with its place."""
    if not body:
        body = b"{}"
    document = read_json(body)
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `")
        raise Unable(422, "bad_body", why, field=place.rstrip("`").removeprefix("$").lstrip(".")) from None


def read_parameters(query: bytes, shape: type[T] | None) -> T | None:
    """What follows the question mark. Lists are separated by commas; a name that is not known is a fault."""
    if shape is None:
        if query:
            raise Unable(400, "bad_parameter", "this takes no parameters")
        return None
    if not query and shape in _DEFAULTS:
        return cast(T, _DEFAULTS[shape])
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=_PARAMETERS_MAX, errors="strict"
        )
    except (UnicodeDecodeError, ValueError):
        raise Unable(400, "bad_parameter", "the part after the question mark cannot be read") from None
    found: dict[str, Any] = {}
    lists = _list_fields(shape)
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).extend(part for part in value.split(",") if part)
            if len(found[name]) > _LIST_MAX:
                raise Unable(400, "bad_parameter", f"{name} has more than {_LIST_MAX} values", field=name)
        elif name in found:
            raise Unable(400, "bad_parameter", f"{name[:40]!r} is there twice", field=name[:40])
        else:
            found[name] = value
    try:
        read = msgspec.convert(found, shape, strict=False)
        if not query:
            _DEFAULTS[shape] = read
        return read
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `")
        raise Unable(400, "bad_parameter", why, field=place.rstrip("`").removeprefix("$").lstrip(".")) from None


_DEFAULTS: dict[type, Any] = {}  # what it means to say nothing; frozen, so that all can share it
_LISTS: dict[type, frozenset[str]] = {}


def _list_fields(shape: type) -> frozenset[str]:
    known = _LISTS.get(shape)
    if known is None:
        fields = msgspec.structs.fields(shape)
        known = frozenset(each.name for each in fields if getattr(each.type, "__origin__", None) is tuple)
        _LISTS[shape] = known
    return known


def _short(error: Exception) -> str:
    return str(error)[:200]
