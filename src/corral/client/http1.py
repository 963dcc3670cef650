"""The part of HTTP/1.1 that a client of Corral needs: requests and responses over a connection that is kept open.

Not the standard library's client, because importing that takes longer than all the rest of ``corral ps``: it imports
the e-mail parser. Knows bytes and headers, not Corral, tokens or retries. A response that violates the protocol raises
``BadAnswer``. Bodies are read by length, in chunks, or to the end of the connection.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")

HEAD_MAX = 64 << 10
_AT_ONCE = 64 << 10
_NO_BODY = (204, 304)


class BadAnswer(OSError):
    """The bytes received are not a complete HTTP response."""


class HttpConnection:
    """One connection; one request at a time. The caller closes it after an invalid response. ``tls``: the context that
    verifies the server; None: plain HTTP."""

    def __init__(self, host: str, port: int, *, tls: SSLContext | None, connect_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout=connect_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            except BaseException:
                self._socket.close()
                raise
        self._host = f"{f'[{host}]' if ':' in host else host}:{port}"
        self._ahead = b""  # bytes received after the current response
        self._patience_s = connect_s
        self.first_look_s = self.look_s = 0.0
        #: Called if no byte moved for ``first_look_s``, and again every ``look_s``; may raise to end the wait.
        self.on_silence: Callable[[], None] | None = None

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> ResponseHead:
        """Send a request and return the head of the response, from which its body is read."""
        self.patience(timeout_s)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        left = memoryview("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        while left:
            part = left[:_AT_ONCE]
            left = left[self._patiently(lambda part=part: self._socket.send(part)) :]  # type: ignore[misc]
        while True:
            head = self._head(method)
            if head.status >= 200:
                return head

    def _head(self, method: str) -> ResponseHead:
        while b"\r\n\r\n" not in self._ahead:
            if len(self._ahead) > HEAD_MAX:
                raise BadAnswer("the head of the answer is too long")
            self._ahead += self._more()
        text, _, self._ahead = self._ahead.partition(b"\r\n\r\n")
        first, *lines = text.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not status.isdecimal():
            raise BadAnswer(f"this is not an HTTP response: {first[:60]!r}")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return ResponseHead(self, int(status), headers, closes=version == "HTTP/1.0", is_empty=method == "HEAD")

    def _more(self) -> bytes:
        data = self._receive(_AT_ONCE)
        if not data:
            raise BadAnswer("the connection was closed")
        return data

    def take(self, most: int) -> bytes:
        """The next bytes, at least one; none: the connection has ended."""
        if not self._ahead:
            return self._receive(min(most, _AT_ONCE))
        data, self._ahead = self._ahead[:most], self._ahead[most:]
        return data

    def line(self) -> bytes:
        while b"\r\n" not in self._ahead:
            if len(self._ahead) > HEAD_MAX:
                raise BadAnswer("a line of the answer is too long")
            self._ahead += self._more()
        line, _, self._ahead = self._ahead.partition(b"\r\n")
        return line

    def patience(self, seconds: float) -> None:
        """Set how long to wait for bytes, from now on."""
        self._patience_s = seconds
        self._socket.settimeout(seconds)

    def _receive(self, most: int) -> bytes:
        return self._patiently(lambda: self._socket.recv(most))

    def _patiently(self, move: Callable[[], T]) -> T:
        """Run ``move``, and call ``look`` regularly while it waits."""
        if self.on_silence is None:
            return move()
        until_s, wait_s = time.monotonic() + self._patience_s, self.first_look_s
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(min(wait_s, left_s))
            try:
                return move()
            except TimeoutError:
                self.on_silence()
                wait_s = self.look_s

    @property
    def is_quiet(self) -> bool:
        """Whether the idle connection received nothing, not even its end."""
        return not self._ahead and not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


class ResponseHead:
    """Status and headers of a response, and its body as it arrives. ``keeps``: the connection can be reused."""

    def __init__(
        self, connection: HttpConnection, status: int, headers: dict[str, str], *, closes: bool, is_empty: bool
    ) -> None:
        self.connection = connection
        self.status = status
        self.headers = headers
        self.keeps = not closes and headers.get("connection", "").lower() != "close"
        self._in_chunks = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._left: int | None = 0 if self._in_chunks else None
        if not self._in_chunks and length is not None:
            if not length.isdecimal():
                raise BadAnswer(f"the length of the answer is {length[:20]!r}")
            self._left = int(length)
        elif not self._in_chunks:
            self.keeps = False
        self._is_over = is_empty or status in _NO_BODY or (self._left == 0 and not self._in_chunks)

    def more(self) -> bytes:
        """The next bytes of the body, as soon as there are any; empty: the end."""
        if self._is_over:
            return b""
        if self._left == 0:
            self._left = self._next_chunk()
            if self._left == 0:
                self._is_over = True
                return b""
        data = self.connection.take(_AT_ONCE if self._left is None else self._left)
        if not data:
            if self._left is not None:
                raise BadAnswer("the connection was closed in the middle of an answer")
            self._is_over = True
            return b""
        if self._left is not None:
            self._left -= len(data)
            if self._left == 0:
                self._end_part()
        return data

    def read(self) -> bytes:
        """The whole body."""
        parts = []
        while data := self.more():
            parts.append(data)
        return b"".join(parts)

    def _next_chunk(self) -> int:
        size = self.connection.line().partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            raise BadAnswer(f"the length of a chunk is {size[:20]!r}") from None
        if length == 0:
            while self.connection.line():
                pass  # trailers are not needed
        return length

    def _end_part(self) -> None:
        if self._in_chunks:
            if self.connection.line():
                raise BadAnswer("a chunk is longer than its stated length")
        else:
            self._is_over = True
