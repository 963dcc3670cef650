"""One HTTP request whose body and answer flow at the same time: a connection through the API, for bytes both ways.

Both directions are sent in chunks, as HTTP/1.1 has them. Knows sockets and chunks, not what the bytes mean.
"""

from __future__ import annotations

import select
import socket
import ssl
from urllib.parse import urlsplit

from corral.io.http import BadAnswer

_HEAD_MAX = 1 << 16
_AT_ONCE = 64 << 10
_BUFFER_MAX = 1 << 20


class DuplexRefused(Exception):
    """The server answered with an error: its status, and the body."""

    def __init__(self, status: int, body: bytes, location: str = "") -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body
        self.location = location


class Duplex:
    """Raises `DuplexRefused`, `BadAnswer` and OSError."""

    def __init__(self, url: str, headers: dict[str, str], tls: ssl.SSLContext | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        host = parts.hostname or ""
        sock = socket.create_connection((host, parts.port or (443 if is_tls else 80)), timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_tls:
                sock = (tls or ssl.create_default_context()).wrap_socket(sock, server_hostname=host)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", "Transfer-Encoding: chunked"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            self._sock = sock
            self._raw = bytearray()
            self._left = 0  # of the present chunk; -1: its end of line is missing
            self._read_head()
        except BaseException:
            sock.close()
            raise

    def _read_head(self) -> None:
        while b"\r\n\r\n" not in self._raw:
            more = self._sock.recv(_AT_ONCE)
            if not more or len(self._raw) > _HEAD_MAX:
                raise BadAnswer("the connection was closed before the answer")
            self._raw += more
        head, _, rest = bytes(self._raw).partition(b"\r\n\r\n")
        self._raw = bytearray(rest)
        lines = head.decode("latin-1").split("\r\n")
        status = lines[0].split(" ")[1:2]
        if not status or not status[0].isdecimal():
            raise BadAnswer(f"this is not an HTTP response: {lines[0][:60]!r}")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if status[0] != "200":
            while len(self._raw) < int(fields.get("content-length", "0") or 0) and (more := self._sock.recv(_AT_ONCE)):
                self._raw += more
            raise DuplexRefused(int(status[0]), bytes(self._raw), fields.get("location", ""))

    def put(self, data: bytes) -> None:
        """Send bytes before `splice`."""
        if data:
            self._sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def splice(self, own: socket.socket, before_end: bytes = b"") -> bool:
        """Copy both ways until one side ends. ``before_end``: sent to the server when the own side has ended. Returns
        whether it was the own side."""
        own.setblocking(False)
        self._sock.setblocking(False)
        outgoing, incoming = bytearray(), bytearray(self._chunks(b""))
        is_own_end = False
        while True:
            if not self._flush(own, incoming) or not self._flush(self._sock, outgoing):
                return is_own_end
            if is_own_end and not outgoing:
                return True
            poll = select.poll()
            wants = select.POLLIN if len(outgoing) < _BUFFER_MAX and not is_own_end else 0
            poll.register(own, wants | (select.POLLOUT if incoming else 0))
            wants = select.POLLIN if len(incoming) < _BUFFER_MAX else 0
            poll.register(self._sock, wants | (select.POLLOUT if outgoing else 0))
            pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() and len(incoming) < _BUFFER_MAX
            ready = dict(poll.poll(0 if pending else None))
            if ready.get(own.fileno(), 0) & ~select.POLLOUT and not is_own_end:
                data = _received(own)
                if data == b"":
                    is_own_end = True
                    data = before_end
                outgoing += b"" if not data else b"%x\r\n%s\r\n" % (len(data), data)
                if is_own_end:
                    outgoing += b"0\r\n\r\n"
            if pending or ready.get(self._sock.fileno(), 0) & ~select.POLLOUT:
                data = _received(self._sock)
                if data == b"":
                    self._flush(own, incoming)
                    return False
                if data:
                    try:
                        incoming += self._chunks(data)
                    except EOFError:
                        self._flush(own, incoming)
                        return False

    def _chunks(self, data: bytes) -> bytes:
        """The content of chunks, as far as it is there. Raises EOFError after the last one."""
        self._raw += data
        found = bytearray()
        while True:
            if self._left > 0:
                part = self._raw[: self._left]
                found += part
                del self._raw[: len(part)]
                self._left -= len(part)
                if self._left:
                    return bytes(found)
                self._left = -1
            if self._left == -1:
                if len(self._raw) < 2:
                    return bytes(found)
                del self._raw[:2]
                self._left = 0
            line, newline, _ = bytes(self._raw[:64]).partition(b"\r\n")
            if not newline:
                return bytes(found)
            del self._raw[: len(line) + 2]
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise BadAnswer("a chunk has an invalid length") from None
            if not self._left:
                if found:
                    self._raw[:0] = b"0\r\n"  # the end, once more
                    return bytes(found)
                raise EOFError

    def _flush(self, sock: socket.socket, data: bytearray) -> bool:
        try:
            while data:
                count = sock.send(bytes(data[:_AT_ONCE]))
                del data[:count]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._sock.close()


def _received(sock: socket.socket) -> bytes | None:
    """None: nothing yet."""
    try:
        return sock.recv(_AT_ONCE)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    except OSError:
        return b""
