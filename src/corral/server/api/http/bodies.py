"""Bytes to values: bodies within limits of size and time, strict JSON, typed parameters.

Knows nothing about routes or rights. Every error in what was sent is an ``ApiError`` with a status from 400 to 422.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive

from corral.server.api.http.problems import ApiError, bad_json
from corral.server.api.http.settings import ApiSettings

T = TypeVar("T")

_CLOSE = {"Connection": "close"}
_PARAMETERS_MAX = 100
_LIST_MAX = 100


class ClientGone(Exception):
    """The client disconnected; there is no one to answer."""


class Bodies:
    """Reads bodies. The total size of all bodies being read is bounded."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.held = 0

    async def read(self, receive: Receive, stated: int | None, most: int) -> bytes:
        """The whole body. Stops reading as soon as it is too long or too slow."""
        if stated is not None and stated > most:
            raise _too_long(most)
        began_s = asyncio.get_running_loop().time()
        first = await self._next(receive, began_s, 0)
        if not first[1]:
            if len(first[0]) > most:
                raise _too_long(most)
            return first[0]
        return await self._rest(receive, began_s, first[0], most)

    async def _rest(self, receive: Receive, began_s: float, first: bytes, most: int) -> bytes:
        parts, size = [first], len(first)
        more = True
        self.held += size
        try:
            while more:
                if size > most:
                    raise _too_long(most)
                if self.held > self.settings.bodies_bytes_max:
                    why = "the server is receiving too many requests"
                    raise ApiError(503, "too_busy", why, "try again", headers={"Retry-After": "1", **_CLOSE})
                part, more = await self._next(receive, began_s, size)
                parts.append(part)
                size, self.held = size + len(part), self.held + len(part)
            if size > most:
                raise _too_long(most)
        finally:
            self.held -= size
        return b"".join(parts)

    async def _next(self, receive: Receive, began_s: float, size: int) -> tuple[bytes, bool]:
        """The next part, after ``size`` bytes. The time allowed depends on the average rate so far."""
        settings = self.settings
        slow_s = settings.body_allowance_s + size / settings.body_rate_min
        try:
            async with asyncio.timeout_at(began_s + min(settings.body_timeout_s, slow_s)):
                message = await receive()
        except TimeoutError:
            why = f"the body did not arrive within {settings.body_timeout_s:g} s"
            if slow_s < settings.body_timeout_s:
                why = f"the body arrives more slowly than {settings.body_rate_min:g} bytes per second"
            raise ApiError(408, "body_too_slow", why, "send the body without pauses", headers=_CLOSE) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)


def _too_long(most: int) -> ApiError:
    return ApiError(413, "body_too_long", f"the body has more than {most} bytes", "send a shorter one", headers=_CLOSE)


def read_json(body: bytes) -> Any:
    """One JSON document without repeated keys.

    Equivalent to checking every object for repeated keys. For speed the document is decoded first, and the objects are
    checked only if encoding it again gives another length (a key was lost, or something was written unusually).
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
        raise ValueError(f"the key {twice[:40]!r} occurs twice")
    return made


def read_body(body: bytes, shape: type[T]) -> T:
    """A body of a known type. The error names the first field that is wrong."""
    if not body:
        body = b"{}"
    document = read_json(body)
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        why, _, path = str(error).partition(" - at `")
        raise ApiError(422, "bad_body", why, field=path.rstrip("`").removeprefix("$").lstrip(".")) from None


def read_parameters(query: bytes, shape: type[T] | None) -> T | None:
    """The query string as a typed value. Lists are separated by commas; an unknown name is an error."""
    if shape is None:
        if query:
            raise ApiError(400, "bad_parameter", "this path takes no parameters", "remove the query string")
        return None
    if not query and shape in _DEFAULTS:
        return cast(T, _DEFAULTS[shape])
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=_PARAMETERS_MAX, errors="strict"
        )
    except (UnicodeDecodeError, ValueError):
        why = f"the query string is malformed or has more than {_PARAMETERS_MAX} parameters"
        raise ApiError(400, "bad_parameter", why) from None
    found: dict[str, Any] = {}
    lists = _list_fields(shape)
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).extend(part for part in value.split(",") if part)
            if len(found[name]) > _LIST_MAX:
                raise ApiError(400, "bad_parameter", f"{name} has more than {_LIST_MAX} values", field=name)
        elif name in found:
            raise ApiError(400, "bad_parameter", f"{name[:40]!r} occurs twice", "give it once", name[:40])
        else:
            found[name] = value
    try:
        read = msgspec.convert(found, shape, strict=False)
        if not query:
            _DEFAULTS[shape] = read
        return read
    except msgspec.ValidationError as error:
        why, _, path = str(error).partition(" - at `")
        raise ApiError(400, "bad_parameter", why, field=path.rstrip("`").removeprefix("$").lstrip(".")) from None


_DEFAULTS: dict[type, Any] = {}  # the value for an empty query string; frozen, so it can be shared
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
