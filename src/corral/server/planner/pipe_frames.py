"""Messages between the server and its planner: one byte of kind, four of length, then the body.

Knows nothing about what is in a body.
"""

from __future__ import annotations

import struct
from asyncio import StreamReader
from collections.abc import Sequence
from typing import BinaryIO

BEGIN = b"B"
FOLLOW = b"F"
READY = b"R"
PLAN = b"P"
WHY = b"W"
TRY = b"T"
OUTLOOK = b"O"
NEEDS = b"N"
LINE = b"L"
IMAGE = b"I"
BLAME, FAILED = b"C", b"!"

_HEADER = struct.Struct("<cI")
_LENGTH = struct.Struct("<I")


def frame(kind: bytes, body: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(body)) + body


def read_frame(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """The next message, or None at the end of the stream."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    kind, length = _HEADER.unpack(header)
    body = stream.read(length)
    return (kind, body) if len(body) == length else None


async def receive_frame(stream: StreamReader) -> tuple[bytes, bytes]:
    """The same, asynchronously. Raises IncompleteReadError at the end of the stream."""
    kind, length = _HEADER.unpack(await stream.readexactly(_HEADER.size))
    return kind, await stream.readexactly(length)


def pack(parts: Sequence[bytes]) -> bytes:
    """Several bodies in one."""
    return b"".join([piece for part in parts for piece in (_LENGTH.pack(len(part)), part)])


def unpack(body: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        parts.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return parts
