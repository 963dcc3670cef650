"""The part of HTTP/1.1 that Corral's own clients need: requests and responses over TCP, TLS or a Unix socket.

Not the standard library's client, because importing that takes longer than all the rest of ``corral ps``: it imports
the e-mail parser. Knows bytes and headers, not Corral, tokens or retries. A response that violates the protocol raises
``BadAnswer``. Bodies are read by length, in chunks, or to the end of the connection.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import select
import socket
import time
from math import inf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from ssl import SSLContext
    from typing import TypeVar
    from urllib.parse import SplitResult

    T = TypeVar("T")

HEAD_MAX = 64 << 10
BODY_MAX = 16 << 20
_AT_ONCE = 64 << 10
_NO_BODY = (204, 304)


class BadAnswer(OSError):
    """The bytes received are not a complete HTTP response."""


class Interrupted(Exception):
    """The request was given up by another thread."""

    def __init__(self) -> None:
        super().__init__("the request was given up")


def fetch(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    timeout_s: float,
    tls: SSLContext | None = None,
    size_max: int = BODY_MAX,
) -> tuple[ResponseHead, bytes]:
    """One request on its own connection: the head of the response, and the whole body."""
    parts, connection = split_url(url), connect(url, timeout_s, tls)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        head = connection.send(method, target, {**headers, "Connection": "close"}, body, timeout_s)
        return head, head.read(size_max)
    finally:
        connection.close()


def connect(url: str, timeout_s: float, tls: SSLContext | None = None) -> HttpConnection:
    """Connect to the server of an address. ``tls`` verifies it, if the address is one of TLS; None: by the certificate
    authorities of this machine."""
    parts = split_url(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    to = socket.create_connection((host, port), timeout=timeout_s)
    try:
        to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_tls:
            if tls is None:
                import ssl

                tls = ssl.create_default_context()
            to = tls.wrap_socket(to, server_hostname=host)
    except BaseException:
        to.close()
        raise
    return HttpConnection(to, f"{f'[{host}]' if ':' in host else host}:{port}")


def split_url(url: str) -> SplitResult:
    from urllib.parse import urlsplit  # not needed for Unix sockets, and slow to import

    return urlsplit(url)


def connect_unix(path: str, timeout_s: float) -> HttpConnection:
    """Connect to a Unix socket."""
    to = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        to.settimeout(timeout_s)
        to.connect(path)
    except BaseException:
        to.close()
        raise
    return HttpConnection(to, "localhost")


class HttpConnection:
    """One connection; one request at a time. The caller closes it after an invalid response."""

    #: With HTTP/1.0 nothing is chunked: what follows the head is the body, up to the end of the connection.
    version = "HTTP/1.1"

    def __init__(self, to: socket.socket, host: str) -> None:
        self._socket = to
        self._host = host
        self._ahead = b""  # bytes received after the current response
        self._patience_s = 0.0
        self._is_interrupted = False
        self._first_look_s = self._look_s = 0.0
        self._on_silence: Callable[[], None] | None = None

    def watch(self, on_silence: Callable[[], None] | None, first_s: float = 0.0, again_s: float = 0.0) -> None:
        """Call this if no byte moved for ``first_s``, and again every ``again_s``. It may raise to end the wait; if the
        times are 0, it waits itself."""
        self._on_silence = on_silence
        self._first_look_s, self._look_s = first_s, again_s

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> ResponseHead:
        """Send a request and return the head of the response, from which its body is read."""
        self.patience(timeout_s)
        lines = [f"{method} {target} {self.version}", f"Host: {self._host}"]
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
                raise BadAnswer("the headers of the response are too long")
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
                raise BadAnswer("a line of the response is too long")
            self._ahead += self._more()
        line, _, self._ahead = self._ahead.partition(b"\r\n")
        return line

    def patience(self, seconds: float) -> None:
        """Set how long to wait for bytes, from now on. 0: do not wait, but raise ``BlockingIOError``."""
        self._patience_s = seconds
        self._socket.settimeout(None if seconds == inf else seconds)

    def _receive(self, most: int) -> bytes:
        return self._patiently(lambda: self._socket.recv(most))

    def _patiently(self, move: Callable[[], T]) -> T:
        """Run ``move``, and call ``on_silence`` regularly while it waits."""
        try:
            if self._on_silence is None:
                return move()
            until_s, wait_s = time.monotonic() + self._patience_s, self._first_look_s
            while True:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("timed out")
                self._socket.settimeout(min(wait_s, left_s))
                try:
                    return move()
                except (TimeoutError, BlockingIOError):
                    self._on_silence()
                    wait_s = self._look_s
        finally:
            if self._is_interrupted:
                raise Interrupted

    def interrupt(self) -> None:
        """End the wait of another thread for this connection: it raises ``Interrupted``."""
        self._is_interrupted = True
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_quiet(self) -> bool:
        """Whether the idle connection received nothing, not even its end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not self._ahead and not poll.poll(0)

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
                raise BadAnswer(f"the response has an invalid length: {length[:20]!r}")
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
                raise BadAnswer("the connection was closed in the middle of a response")
            self._is_over = True
            return b""
        if self._left is not None:
            self._left -= len(data)
            if self._left == 0:
                self._end_part()
        return data

    def read(self, size_max: int | None = None) -> bytes:
        """The whole body. Raises ``BadAnswer`` if it is longer than ``size_max``."""
        parts, size = [], 0
        while data := self.more():
            parts.append(data)
            size += len(data)
            if size_max is not None and size > size_max:
                raise BadAnswer(f"the answer is longer than {size_max} bytes")
        return b"".join(parts)

    def _next_chunk(self) -> int:
        size = self.connection.line().partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            raise BadAnswer(f"a chunk has an invalid length: {size[:20]!r}") from None
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
