"""``Client``: calls that return when they are done, over connections of the standard library that are kept open.

May be used from several threads: each request has a connection to itself while it lasts.
"""

from __future__ import annotations

import http.client
import select
import socket
import time
from collections.abc import Generator
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from corral.client.call import SILENCE_S, Answer, Call, Item, More, Open, Pause, Series
from corral.client.calls import Calls
from corral.client.credentials import find_credentials
from corral.client.errors import BadCredentials, Unreachable
from corral.client.retry import Patience

T = TypeVar("T")

CONNECT_S = 5.0
ANSWER_S = 60.0
_AT_ONCE = 1 << 16
_KEPT = 8


class Client(Calls):
    """A server, as one user sees it. Without arguments: as CORRAL_URL and CORRAL_TOKEN or credentials.json say.

    ``patience_s``: for how long a request is tried again when there is no answer, or the server is busy.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience_s: float = 10.0,
        first_patience_s: float | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        if url is None or token is None:
            found = find_credentials()
            url, token = url or found.url, token or found.token
        self.url = url.rstrip("/")
        self.patience = Patience(patience_s, patience_s if first_patience_s is None else first_patience_s)
        self._wire = _Wire(self.url, token, answer_s)

    def converse(self, series: Series[T], /) -> Generator[T, None, None]:
        """Carry out a conversation; see ``call``."""
        answer: Any = None
        lost: Unreachable | None = None
        stream: _Stream | None = None
        try:
            while True:
                try:
                    step = series.send(answer) if lost is None else series.throw(lost)
                except StopIteration:
                    return
                answer = lost = None
                try:
                    if isinstance(step, Item):
                        yield step.value
                    elif isinstance(step, Call):
                        answer = self._wire.ask(step)
                    elif isinstance(step, Open):
                        if stream is not None:
                            stream.close()
                        stream, answer = self._wire.open(step.call)
                    elif isinstance(step, More):
                        assert stream is not None, "nothing was opened"
                        answer = stream.more(step.seconds)
                    elif isinstance(step, Pause):
                        time.sleep(step.seconds)
                except Unreachable as error:
                    lost = error
        finally:
            if stream is not None:
                stream.close()

    def close(self) -> None:
        """Let go of all connections."""
        self._wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"


def split_url(url: str) -> SplitResult:
    """The parts of an address, or a complaint about it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadCredentials(f"{url!r} is not the address of a server", "write it like http://127.0.0.1:7070")
    return parts


class _Wire:
    """Connections to one server: taken when needed, given back when the answer was read."""

    def __init__(self, url: str, token: str, answer_s: float) -> None:
        self._url, self._parts, self._answer_s = url, split_url(url), answer_s
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._idle: list[http.client.HTTPConnection] = []

    def ask(self, call: Call[Any]) -> Answer:
        connection, response = self._send(call, self._answer_s)
        try:
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._lost(error, connected=True) from None
        except BaseException:
            connection.close()  # half an answer is still in it
            raise
        self._give_back(connection, response)
        return _answer(response, body)

    def open(self, call: Call[Any]) -> tuple[_Stream | None, Answer]:
        connection, response = self._send(call, SILENCE_S)
        if response.status >= 400:
            with_body = _answer(response, response.read())
            connection.close()
            return None, with_body
        return _Stream(self, connection, response), _answer(response)

    def _send(self, call: Call[Any], timeout_s: float) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection, connected = self._take(), False
        body = None if call.body is None else msgspec.json.encode(call.body)
        headers = {**self._headers, **call.headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            if connection.sock is None:
                connection.connect()
                _socket(connection).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected = True
            _socket(connection).settimeout(timeout_s)
            connection.request(call.method, self._parts.path.rstrip("/") + call.target, body, headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._lost(error, connected=connected) from None
        except BaseException:
            connection.close()
            raise

    def _take(self) -> http.client.HTTPConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()  # readable with nothing asked: the server has hung up
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=CONNECT_S)

    def _give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.will_close or len(self._idle) >= _KEPT:
            connection.close()
        else:
            self._idle.append(connection)

    def _lost(self, error: Exception, *, connected: bool) -> Unreachable:
        return lost(self._url, error, connected=connected)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Stream:
    """An answer that goes on. Closing it closes its connection."""

    def __init__(self, wire: _Wire, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._wire, self._connection, self._response = wire, connection, response

    def more(self, seconds: float) -> bytes:
        try:
            _socket(self._connection).settimeout(seconds)
            return self._response.read1(_AT_ONCE)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise self._wire._lost(error, connected=True) from None

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def _socket(connection: http.client.HTTPConnection) -> socket.socket:
    assert connection.sock is not None, "not connected"
    return connection.sock


def _answer(response: http.client.HTTPResponse, body: bytes = b"") -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)


def lost(url: str, error: Exception, *, connected: bool) -> Unreachable:
    """What to say when there is no answer."""
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(f"no server answers at {url}", "start one with: corral up", connected=connected)
    if isinstance(error, TimeoutError):
        what = "does not answer" if connected else "cannot be reached"
        hint = "corral doctor looks for the cause"
        return Unreachable(f"the server at {url} {what} in time", hint, connected=connected)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    what = f"the connection to {url} was lost" if connected else f"the server at {url} cannot be reached"
    return Unreachable(f"{what}: {why}", "check the address, or corral doctor", connected=connected)
