"""Requests to a container runtime over its Unix socket, by Docker's Engine API 1.41, which Podman serves as well.

HTTP/1.0 on purpose: the end of a response is the end of its connection, nothing is chunked, and what follows the head
is the body itself, also if the body is the output of a container. Knows HTTP and JSON, not tasks.
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

    #: Waits up to this many milliseconds for a descriptor. Returns whether to go on waiting.
    Wait = Callable[[int, int], bool]

PREFIX = "/v1.41"
CALL_S = 120.0  # a busy runtime is slow to create and to start a container
_HEAD_MAX = 1 << 16
_CHUNK = 1 << 16
_LOOK_MS = 1_000
NO_ANSWER = 0


class ContainerRuntimeError(Exception):
    """The error message of the container runtime, and its HTTP status (`NO_ANSWER`: there was no response)."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class ResponseStream:
    """A connection whose response is not complete: what was already read of it, and the socket for the rest."""

    def __init__(self, connection: socket.socket, begun: bytes, headers: dict[str, str]) -> None:
        self.connection = connection
        self.begun = begun
        self.headers = headers

    def fileno(self) -> int:
        return self.connection.fileno()

    def read(self) -> bytes | None:
        """What has arrived. b"": it is complete. None: nothing yet."""
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


class ContainerRuntime:
    """``path``: of the socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(
        self, method: str, path: str, body: Any = None, timeout_s: float = CALL_S, wait: Wait | None = None
    ) -> Any:
        """The decoded response; None if it is empty. Raises `ContainerRuntimeError`."""
        data = None if body is None else json.dumps(body).encode()
        stream = self._ask(method, path, data, timeout_s, wait=wait)
        answer = _all_of(stream)
        try:
            return json.loads(answer) if answer.strip() else None
        except ValueError:
            return None

    def ping(self, timeout_s: float = CALL_S) -> dict[str, str]:
        """The headers of its shortest response, by their names in lower case."""
        stream = self._ask("GET", "/_ping", None, timeout_s)
        stream.close()
        return stream.headers

    def send(self, method: str, path: str, body: bytes, kind: str, timeout_s: float = CALL_S) -> bytes:
        """Send bytes unchanged. Returns the body of the response."""
        stream = self._ask(method, path, body, timeout_s, kind)
        return _all_of(stream)

    def stream(self, method: str, path: str, timeout_s: float = CALL_S, wait: Wait | None = None) -> ResponseStream:
        """A response that is read as it arrives, on a socket that does not block. Once ``wait`` returns False, the call
        fails with `NO_ANSWER`."""
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
    ) -> ResponseStream:
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
                    raise ContainerRuntimeError(NO_ANSWER, "the request is no longer wanted")
            status, headers, begun = _read_head(connection)
            stream = ResponseStream(connection, begun, headers)
            if status >= 400:
                raise ContainerRuntimeError(status, _why(_all_of(stream)))
        except OSError as fault:
            connection.close()
            words = "no answer in time" if isinstance(fault, TimeoutError) else fault.strerror or str(fault)
            raise ContainerRuntimeError(
                NO_ANSWER, f"the container runtime at {self.path} does not answer: {words}"
            ) from fault
        except BaseException:
            connection.close()
            raise
        return stream


def quoted(text: str) -> str:
    """Percent-encode text for a path or a query. (Importing urllib would take too long.)"""
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
            raise OSError(0, "it closed the connection")
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(0, "the answer is not HTTP")
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    return int(words[1]), {name.lower(): value.strip() for name, _, value in lines}, rest


def _all_of(stream: ResponseStream) -> bytes:
    with stream.connection:
        parts = [stream.begun]
        while part := stream.connection.recv(_CHUNK):
            parts.append(part)
    return b"".join(parts)


def _why(body: bytes) -> str:
    try:
        error = json.loads(body)
        return str(error.get("message") or error.get("cause") or body.decode("utf-8", "replace"))
    except (ValueError, AttributeError):
        return body.decode("utf-8", "replace").strip()
