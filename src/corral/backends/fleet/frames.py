"""How an agent and the gateway write to each other: messages in pieces, so that a long one never holds up a short one.

A piece is one byte of kind, four of length (the highest bit: more pieces of this message follow), then bytes. Pieces of
different kinds may be mixed; those of one kind are in order. Knows how much of each kind may come, and nothing of what
is in it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

#: From the agent.
HELLO, RENEW, REPORT, ASK, LOGS = b"H", b"N", b"R", b"D", b"L"
#: To the agent. BUSY names the kind that is to be sent again.
WELCOME, REFUSED, LEASE, ANSWER, DESIRED, RECEIPT, BUSY = b"w", b"x", b"n", b"a", b"d", b"l", b"b"

PIECE_BYTES = 16 << 10
FROM_AGENTS: Mapping[bytes, int] = {HELLO: 4 << 10, RENEW: 1 << 10, REPORT: 8 << 20, ASK: 1 << 10, LOGS: 1 << 20}
TO_AGENTS: Mapping[bytes, int] = {
    WELCOME: 4 << 10, REFUSED: 4 << 10, LEASE: 1 << 10, ANSWER: 1 << 20, DESIRED: 64 << 20, RECEIPT: 1 << 20,
    BUSY: 16,
}  # fmt: skip

_HEAD = struct.Struct("!cI")
_MORE = 1 << 31


class BadFrame(Exception):
    """What came is no message of the other side; nothing after it can be trusted."""


def pieces(kind: bytes, body: bytes) -> Iterator[bytes]:
    """A message, ready to be sent piece by piece."""
    at = 0
    while len(body) - at > PIECE_BYTES:
        yield _HEAD.pack(kind, PIECE_BYTES | _MORE) + body[at : at + PIECE_BYTES]
        at += PIECE_BYTES
    yield _HEAD.pack(kind, len(body) - at) + body[at:]


class Assembly:
    """Puts messages together from bytes as they come. ``most``: how long a message of each kind may be."""

    def __init__(self, most: Mapping[bytes, int]) -> None:
        self._most = most
        self._raw = bytearray()
        self._parts: dict[bytes, bytearray] = {}

    @property
    def held(self) -> int:
        """Bytes of what is not whole yet."""
        return len(self._raw) + sum(map(len, self._parts.values()))

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Messages that are whole now. Raises `BadFrame`."""
        raw, found, at = self._raw, list[tuple[bytes, bytes]](), 0
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
            raise BadFrame(f"there is no message of kind {kind!r}")
        if length > PIECE_BYTES or length + len(self._parts.get(kind, b"")) > most:
            raise BadFrame(f"a message of kind {kind!r} is longer than {most} bytes, or a piece of it is")
