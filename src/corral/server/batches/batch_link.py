"""Messages between the server, the batch process and the workers: four bytes of length, then the message.

The server and its child use MessagePack; workers, which have the standard library only, use JSON. Knows nothing about
what is in a message.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

FROM_WORKERS_MAX = 256 << 20
_LENGTH = 4


class BatchSetup(Struct, frozen=True, kw_only=True):
    """What the batch process gets at its start."""

    folder: str
    database: str
    epoch: int
    host: str
    port: int
    tls_certificate: str = ""
    tls_key: str = ""


class AskBatch(Struct, frozen=True, array_like=True):
    """A request of the server. ``number``: that of the answer."""

    number: int
    verb: str
    about: dict[str, Any]


class ToldBatch(Struct, frozen=True, array_like=True):
    """The answer; or why there is none: status, code and text of a problem."""

    number: int
    answer: Any = None
    problem: tuple[int, str, str] | None = None


def framed_message(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH, "big") + body


async def read_message(reader: asyncio.StreamReader, most: int) -> bytes | None:
    """The next message; None at the end of the stream. Raises ``ValueError`` if it is too long."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
        if length > most:
            raise ValueError(f"a message of {length} bytes; the limit is {most}")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


encode_json = msgspec.json.Encoder().encode
encode_pack = msgspec.msgpack.Encoder().encode
