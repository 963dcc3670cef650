"""The framing between an agent and the gateway: messages are sent in pieces, so that a long one never delays a short
one.

A piece is one byte of kind, four of length (the highest bit: more pieces of this message follow), then bytes. Pieces of
different kinds may be mixed; those of one kind are in order. Knows the size limit of each kind, not the contents.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

#: From the agent.
HELLO = b"H"
RENEW = b"N"
REPORT = b"R"
ASK = b"D"
LOGS = b"L"
#: To the agent. BUSY names the kind to send again.
WELCOME = b"w"
REFUSED = b"x"
LEASE = b"n"
ANSWER = b"a"
DESIRED = b"d"
RECEIPT = b"l"
BUSY = b"b"

PIECE_BYTES = 16 << 10
FROM_AGENTS: Mapping[bytes, int] = {HELLO: 4 << 10, RENEW: 1 << 10, REPORT: 8 << 20, ASK: 1 << 10, LOGS: 1 << 20}
TO_AGENTS: Mapping[bytes, int] = {
    WELCOME: 4 << 10,
    REFUSED: 4 << 10,
    LEASE: 1 << 10,
    ANSWER: 1 << 20,
    DESIRED: 64 << 20,
    RECEIPT: 1 << 20,
    BUSY: 16,
}

_HEAD = struct.Struct("!cI")
_MORE = 1 << 31


class BadFrame(Exception):
    """The bytes are not a valid message; nothing after them can be trusted."""


def pieces(kind: bytes, body: bytes) -> Iterator[bytes]:
    """The pieces of a message, ready to be sent."""
    at = 0
    while len(body) - at > PIECE_BYTES:
        yield _HEAD.pack(kind, PIECE_BYTES | _MORE) + body[at : at + PIECE_BYTES]
        at += PIECE_BYTES
    yield _HEAD.pack(kind, len(body) - at) + body[at:]


class Assembly:
    """Assembles messages from bytes as they arrive. ``most``: the size limit of each kind."""

    def __init__(self, most: Mapping[bytes, int]) -> None:
        self._most = most
        self._raw = bytearray()
        self._parts: dict[bytes, bytearray] = {}

    @property
    def held(self) -> int:
        """Bytes of messages that are not complete yet."""
        return len(self._raw) + sum(map(len, self._parts.values()))

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that are complete now. Raises `BadFrame`."""
        raw = self._raw
        found: list[tuple[bytes, bytes]] = []
        at = 0
        raw += data
        while len(raw) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(raw, at)
            is_last, length = not length & _MORE, length & ~_MORE
            self._check(kind, length)
            if len(raw) - at - _HEAD.size < length:
                break
            at += _HEAD.size
            body = bytes(raw[at : at + length])
            at += length
            if is_last and kind not in self._parts:
                found.append((kind, body))
                continue
            part = self._parts.setdefault(kind, bytearray())
            part += body
            if is_last:
                found.append((kind, bytes(self._parts.pop(kind))))
        del raw[:at]
        return found

    def _check(self, kind: bytes, length: int) -> None:
        most = self._most.get(kind)
        if most is None:
            raise BadFrame(f"unknown kind of message: {kind!r}")
        if length > PIECE_BYTES or length + len(self._parts.get(kind, b"")) > most:
            raise BadFrame(f"a message of kind {kind!r}, or a piece of it, is longer than {most} bytes")
