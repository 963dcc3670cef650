"""Requests to a container engine over its Unix socket, in the dialect of Docker's Engine API 1.41, which Podman speaks.

HTTP/1.0 on purpose: an answer then ends with its connection, nothing comes in chunks, and what follows the head of an
answer is the body as it is, also where the body is the output of a container. Knows HTTP and JSON, nothing of tasks.
"""

from __future__ import annotations

import json
import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Waits so many milliseconds for a descriptor, and says whether to go on waiting.
    Wait = Callable[[int, int], bool]

PREFIX = "/v1.41"
CALL_S = 120.0  # a busy engine is slow to make and to start
_HEAD_MAX = 1 << 16
_CHUNK = 1 << 16
_LOOK_MS = 1_000
NO_ANSWER = 0


class EngineFault(Exception):
    """What the engine said, and the status it said it with (`NO_ANSWER`: it said nothing)."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Stream:
    """A connection whose answer goes on: what was already read of it, and the socket that the rest comes from."""

    def __init__(self, connection: socket.socket, begun: bytes, headers: dict[str, str]) -> None:
        self.connection, self.begun, self.headers = connection, begun, headers

    def fileno(self) -> int:
        return self.connection.fileno()

    def read(self) -> bytes | None:
        """What is there; b"": it is over; None: nothing now."""
        if self.begun:
            data, self.begun = self.begun, b""
            return data
        try:
            return self.connection.recv(_CHUNK)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self.connection.close()


class Engine:
    """``path``: of the socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(
        self, method: str, path: str, body: Any = None, timeout_s: float = CALL_S, wait: Wait | None = None
    ) -> Any:
        """The answer, decoded; None where there is none. Raises `EngineFault`."""
        data = None if body is None else json.dumps(body).encode()
        stream = self._ask(method, path, data, timeout_s, wait=wait)
        answer = _all_of(stream)
        try:
            return json.loads(answer) if answer.strip() else None
        except ValueError:
            return None

    def ping(self, timeout_s: float = CALL_S) -> dict[str, str]:
        """The headers of its shortest answer, by their names in small letters."""
        stream = self._ask("GET", "/_ping", None, timeout_s)
        stream.close()
        return stream.headers

    def send(self, method: str, path: str, body: bytes, kind: str, timeout_s: float = CALL_S) -> bytes:
        """Bytes as they are; the answer as it comes."""
        stream = self._ask(method, path, body, timeout_s, kind)
        return _all_of(stream)

    def stream(self, method: str, path: str, timeout_s: float = CALL_S, wait: Wait | None = None) -> Stream:
        """An answer that is read as it comes; the connection does not wait. Once ``wait`` says no, there is no
        answer."""
        stream = self._ask(method, path, None, timeout_s, wait=wait)
        stream.connection.setblocking(False)
        return stream

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        kind: str = "application/json",
        wait: Wait | None = None,
    ) -> Stream:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        where = path if path.startswith("/v") else PREFIX + path
        head = f"{method} {where} HTTP/1.0\r\nHost: engine\r\n"
        if body is not None:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        elif method == "POST":
            head += "Content-Length: 0\r\n"
        try:
            connection.connect(self.path)
            connection.sendall(head.encode() + b"\r\n" + (body or b""))
            while wait is not None and not _is_readable(connection):
                if not wait(_LOOK_MS, connection.fileno()):
                    raise EngineFault(NO_ANSWER, "not wanted any more")
            status, headers, begun = _read_head(connection)
            stream = Stream(connection, begun, headers)
            if status >= 400:
                raise EngineFault(status, _why(_all_of(stream)))
        except OSError as fault:
            connection.close()
            words = "no answer in time" if isinstance(fault, TimeoutError) else fault.strerror or str(fault)
            raise EngineFault(NO_ANSWER, f"the container engine at {self.path} does not answer: {words}") from fault
        except BaseException:
            connection.close()
            raise
        return stream


def quoted(text: str) -> str:
    """For a place in a path or a query. (urllib is not loaded just for this.)"""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in os.fsencode(text))


def _is_readable(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _read_head(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(_CHUNK)
        if not part or len(data) > _HEAD_MAX:
            raise OSError(0, "it ended the connection")
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(0, "what answers there does not speak HTTP")
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    return int(words[1]), {name.lower(): value.strip() for name, _, value in lines}, rest


def _all_of(stream: Stream) -> bytes:
    with stream.connection:
        parts = [stream.begun]
        while part := stream.connection.recv(_CHUNK):
            parts.append(part)
    return b"".join(parts)


def _why(body: bytes) -> str:
    try:
        said = json.loads(body)
        return str(said.get("message") or said.get("cause") or body.decode("utf-8", "replace"))
    except (ValueError, AttributeError):
        return body.decode("utf-8", "replace").strip()
