"""The protocol of job steps: what a client and the supervisor of a seat send each other.

A frame is one byte of kind, four of length, then bytes: JSON, or a `POSITION` and raw bytes. Every stream counts its
bytes from the start; the receiver acknowledges offsets and the sender keeps what is not acknowledged. So a connection
may break at any byte and be made again without losing or repeating one. Knows sockets and bytes, not processes.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: From a process of the gang to the supervisor of its own seat: a connection to another seat, please. The answer
#: has the connection as a descriptor.
OPEN = b"o"
#: From an agent or a server that passes a connection on: it may break without the client being gone.
RELAYED = b"v"
#: To the supervisor of the first seat: what the seats of the gang have; a share for a step; the step is over.
SEATS = b"g"
ALLOCATE = b"l"
RELEASE = b"r"
#: To the supervisor of any seat: start processes, attach to those that were started before; input; a signal; the size
#: of the terminal; received up to here; the client ends, and with it the processes.
START = b"S"
ATTACH = b"A"
INPUT = b"I"
SIGNAL = b"K"
RESIZE = b"W"
RECEIVED = b"a"
QUIT = b"Q"
#: Without a step of the client's own: a signal for the steps of the seat, for one of them, or for the script.
SIGNAL_STEP = b"k"
#: Answers: the result of a request; it cannot be done, and why; wait.
DONE = b"D"
FAILED = b"F"
WAIT = b"w"
#: Output; input taken up to here; how a process ended.
OUTPUT = b"O"
TAKEN = b"i"
EXIT = b"X"

HEAD = struct.Struct("!cI")
POSITION = struct.Struct("!HBQ")  # number of the process on the seat, stream (0, 1, 2), offset
STATUS = struct.Struct("!Hi")  # number of the process, exit code: 128 + n for signal n
#: First word of a command that is one of Corral's own small programs (`in_task`), which the supervisor finds.
OWN_PROGRAM = "@corral"
DATA_MAX = 64 << 10
FRAME_MAX = 4 << 20  # a command with its environment
WINDOW = 256 << 10  # bytes of one stream that are sent and not acknowledged
SOCKET = "step"  # in the private directory of a task
SOCKET_VARIABLE, TOKEN_VARIABLE = "CORRAL_STEP_SOCKET", "CORRAL_STEP_TOKEN"
DETACHED_S = 120.0  # how long processes wait for their client after a broken connection


class BadStepFrame(Exception):
    """The bytes are not a valid frame; nothing after them can be trusted."""


def frame(kind: bytes, body: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(body)) + body


def message(kind: bytes, value: Any = None) -> bytes:
    return frame(kind, b"" if value is None else json.dumps(value, separators=(",", ":")).encode())


def data(kind: bytes, number: int, stream: int, offset: int, body: bytes = b"") -> bytes:
    return frame(kind, POSITION.pack(number, stream, offset) + body)


def parse(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises `BadStepFrame`."""
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError) as wrong:
        raise BadStepFrame(f"not JSON: {wrong}") from None
    if not isinstance(value, dict):
        raise BadStepFrame("not a JSON object")
    return value


def position(body: bytes) -> tuple[int, int, int, bytes]:
    if len(body) < POSITION.size:
        raise BadStepFrame("a frame is too short")
    number, stream, offset = POSITION.unpack_from(body)
    return number, stream, offset, body[POSITION.size :]


class Reader:
    """Splits bytes into frames as they arrive."""

    def __init__(self, size_max: int = FRAME_MAX) -> None:
        self._raw = bytearray()
        self._size_max = size_max

    @property
    def rest(self) -> bytes:
        """The beginning of a frame that is not complete."""
        return bytes(self._raw)

    def feed(self, more: bytes) -> list[tuple[bytes, bytes]]:
        raw = self._raw
        raw += more
        found: list[tuple[bytes, bytes]] = []
        at = 0
        while len(raw) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(raw, at)
            if length > self._size_max:
                raise BadStepFrame(f"a frame of {length} bytes is longer than {self._size_max}")
            begin = at + HEAD.size
            if len(raw) - begin < length:
                break
            found.append((kind, bytes(raw[begin : begin + length])))
            at = begin + length
        del raw[:at]
        return found
