"""Requests to a container runtime over its Unix socket, by Docker's Engine API 1.41, which Podman serves as well.

HTTP/1.0 on purpose: the end of a response is the end of its connection, nothing is chunked, and what follows the head
is the body itself, also if the body is the output of a container. Knows HTTP and JSON, not tasks.
"""

from __future__ import annotations

import json
import os
from math import inf

from corral.io.http import connect_unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.io.http import ResponseHead

    #: Waits up to this many milliseconds for a descriptor. Returns whether to go on waiting.
    Wait = Callable[[int, int], bool]

PREFIX = "/v1.41"
CALL_S = 120.0  # a busy runtime is slow to create and to start a container
_LOOK_MS = 1_000
NO_ANSWER = 0


class ContainerRuntimeError(Exception):
    """The error message of the container runtime, and its HTTP status (`NO_ANSWER`: there was no response)."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class ResponseStream:
    """A response that is read as it arrives, without waiting."""

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        head.connection.watch(None)
        head.connection.patience(0)

    def fileno(self) -> int:
        return self._head.connection.fileno()

    def read(self) -> bytes | None:
        """What has arrived. b"": it is complete. None: nothing yet."""
        try:
            return self._head.more()
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self._head.connection.close()


class ContainerRuntime:
    """``path``: of the socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(
        self, method: str, path: str, body: Any = None, timeout_s: float = CALL_S, wait: Wait | None = None
    ) -> Any:
        """The decoded response; None if it is empty. Raises `ContainerRuntimeError`."""
        head = self._ask(method, path, body, timeout_s, wait)
        try:
            return json.loads(head.read() or b"null")
        except ValueError:
            return None
        except OSError as fault:
            raise self._no_answer(fault) from fault
        finally:
            head.connection.close()

    def ping(self, timeout_s: float = CALL_S) -> dict[str, str]:
        """The headers of its shortest response, by their names in lower case."""
        head = self._ask("GET", "/_ping", None, timeout_s)
        head.connection.close()
        return head.headers

    def stream(self, method: str, path: str, timeout_s: float = CALL_S, wait: Wait | None = None) -> ResponseStream:
        """A response that is read as it arrives, on a socket that does not block."""
        return ResponseStream(self._ask(method, path, None, timeout_s, wait))

    def _ask(self, method: str, path: str, body: Any, timeout_s: float, wait: Wait | None = None) -> ResponseHead:
        """With ``wait``, it decides how long to wait: once it returns False, the call fails with `NO_ANSWER`."""
        where = path if path.startswith("/v") else PREFIX + path
        headers = {} if body is None else {"Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else b"" if method == "POST" else None
        connection = None
        try:
            connection = connect_unix(self.path, timeout_s)
            connection.version = "HTTP/1.0"
            if wait is not None:
                connection.watch(lambda: _keep_waiting(wait, connection.fileno()))
                timeout_s = inf
            head = connection.send(method, where, headers, data, timeout_s)
            if head.status >= 400:
                raise ContainerRuntimeError(head.status, _why(head.read()))
        except BaseException as fault:
            if connection is not None:
                connection.close()
            if isinstance(fault, OSError):
                raise self._no_answer(fault) from fault
            raise
        return head

    def _no_answer(self, fault: OSError) -> ContainerRuntimeError:
        words = "no answer in time" if isinstance(fault, TimeoutError) else fault.strerror or str(fault)
        return ContainerRuntimeError(NO_ANSWER, f"the container runtime at {self.path} does not answer: {words}")


def _keep_waiting(wait: Wait, fd: int) -> None:
    if not wait(_LOOK_MS, fd):
        raise ContainerRuntimeError(NO_ANSWER, "the request was cancelled")


def quoted(text: str) -> str:
    """Percent-encode text for a path or a query. (Importing urllib would take too long.)"""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in os.fsencode(text))


def _why(body: bytes) -> str:
    try:
        error = json.loads(body)
        return str(error.get("message") or error.get("cause") or body.decode("utf-8", "replace"))
    except (ValueError, AttributeError):
        return body.decode("utf-8", "replace").strip()
