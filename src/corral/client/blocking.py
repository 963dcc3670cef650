"""``Client``: blocking calls, over connections that are kept open.

Safe to use from several threads: each request has its own connection while it lasts.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from corral.client.call import SILENCE_S, ApiCall, Item, More, Open, Pause, RawAnswer, Series
from corral.client.calls import Calls
from corral.client.credentials import find_credentials
from corral.client.errors import BadCredentials, Unreachable
from corral.client.http1 import HttpConnection, ResponseHead
from corral.client.retry import patience_for
from corral.client.servers import HOPS, Servers
from corral.client.stale_answers import HEALTH_PATH, HEALTH_S, LOOK_AFTER_S, LOOK_AGAIN_S, Overtaken, overtaken_by

if TYPE_CHECKING:
    from ssl import SSLContext

    from corral.wire.api.record import HealthView

T = TypeVar("T")

CONNECT_S = 5.0
QUICK_CONNECT_S = 2.0  # if there is another server to try
ANSWER_S = 60.0
_KEPT = 8


class Client(Calls):
    """A server, as one user sees it. Without arguments: from CORRAL_URL and CORRAL_TOKEN, or credentials.json.

    ``patience_s``: how long a request is retried if there is no answer, or the server is busy. ``ca``: a file with the
    certificate authority of the server, if this machine does not trust it already. ``allow_plain_http``: send the token
    without TLS to other machines too; only for networks where no one else can listen.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience_s: float = 10.0,
        first_patience_s: float | None = None,
        answer_s: float = ANSWER_S,
        ca: str | None = None,
        allow_plain_http: bool = False,
    ) -> None:
        if url is None or token is None:
            found = find_credentials()
            allow_plain_http = allow_plain_http or (found.allow_plain_http and url in (None, found.url))
            url = url or found.url
            token = token or found.token
            ca = found.ca if ca is None else ca
        servers = Servers(url, allow_plain=allow_plain_http)
        self._wire = _Wire(servers, token, answer_s, ca or "")
        self.patience = patience_for(servers, patience_s, first_patience_s)

    @property
    def url(self) -> str:
        """The server that requests go to now."""
        return self._wire.url

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
                    elif isinstance(step, ApiCall):
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
        """Close all connections."""
        self._wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"


def tls_context(ca: str) -> SSLContext:
    """The TLS context; ssl is imported only if it is needed."""
    import ssl

    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        why = "it contains no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
        what = f"the certificate authority in {ca or 'the files of this machine'} cannot be read: {why}"
        raise BadCredentials(what, "check CORRAL_CA, or log in again") from None


def split_url(url: str) -> SplitResult:
    """The parts of an address. Raises ``BadCredentials``."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadCredentials(f"{url!r} is not the address of a server", "write it like http://127.0.0.1:7070")
    return parts


class _Wire:
    """Connections to the current server: taken when needed, returned when the answer was read."""

    def __init__(self, servers: Servers, token: str, answer_s: float, ca: str) -> None:
        for place in servers.all:
            split_url(place)
        self._servers = servers
        self._answer_s = answer_s
        self._ca = ca
        self._tls: SSLContext | None = None
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._idle: list[tuple[str, HttpConnection]] = []

    @property
    def url(self) -> str:
        return self._servers.current

    def ask(self, call: ApiCall[Any], hops: int = HOPS) -> RawAnswer:
        url = self.url
        try:
            head = self._send(url, call, self._answer_s)
            body = self._body(url, head)
        except Overtaken as silent:
            if not call.repeatable or not hops:
                raise lost(url, silent, connected=True) from None
            return self.ask(call, hops - 1)
        self._give_back(url, head)
        if self._is_sent_on(head, hops):
            return self.ask(call, hops - 1)
        if head.status == 503 and self._servers.others:
            self._servers.lost()  # the next server may know the leader
        return RawAnswer(head.status, head.headers, body)

    def _body(self, url: str, head: ResponseHead) -> bytes:
        try:
            return head.read()
        except Overtaken:
            head.connection.close()
            raise
        except OSError as error:
            head.connection.close()
            raise self._lost(url, error, connected=True) from None
        except BaseException:
            head.connection.close()  # part of an answer has not been read
            raise

    def open(self, call: ApiCall[Any], hops: int = HOPS) -> tuple[_Stream | None, RawAnswer]:
        url = self.url
        try:
            head = self._send(url, call, SILENCE_S)
        except Overtaken as silent:
            if not hops:
                raise lost(url, silent, connected=True) from None
            return self.open(call, hops - 1)
        if head.status == 307:
            head.connection.close()
        if self._is_sent_on(head, hops):
            return self.open(call, hops - 1)
        stream = _Stream(url, head)
        if head.status < 400:
            return stream, RawAnswer(head.status, head.headers)
        body = b""
        while data := stream.more(self._answer_s):
            body += data
        stream.close()
        return None, RawAnswer(head.status, head.headers, body)

    def _is_sent_on(self, head: ResponseHead, hops: int) -> bool:
        """Another server is the leader; requests go there from now on."""
        return head.status == 307 and self._servers.follow(head.headers.get("location", ""), hops)

    def _send(self, url: str, call: ApiCall[Any], timeout_s: float) -> ResponseHead:
        body = None if call.body is None else msgspec.json.encode(call.body)
        headers = {**self._headers, **call.headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection: HttpConnection | None = None
        try:
            connection = self._take(url)
            if self._servers.others:
                connection.on_silence = partial(self._look_around, url)
                connection.first_look_s, connection.look_s = LOOK_AFTER_S, LOOK_AGAIN_S
            return connection.send(call.method, split_url(url).path + call.target, headers, body, timeout_s)
        except Overtaken:
            assert connection is not None
            connection.close()
            raise
        except OSError as error:
            if connection is not None:
                connection.close()
            raise self._lost(url, error, connected=connection is not None) from None
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    def _lost(self, url: str, error: Exception, *, connected: bool) -> Unreachable:
        """The error to raise. The next request goes to the next server."""
        if url == self.url:
            self._servers.lost()
        return lost(url, error, connected=connected)

    def _take(self, url: str) -> HttpConnection:
        while self._idle:
            there, connection = self._idle.pop()
            if there == url and connection.is_quiet:
                return connection
            connection.close()  # the server closed the connection, or requests now go to another server
        return self._connected(url, QUICK_CONNECT_S if self._servers.others else CONNECT_S)

    def _connected(self, url: str, connect_s: float) -> HttpConnection:
        parts = split_url(url)
        if parts.scheme == "http":
            return HttpConnection(parts.hostname or "", parts.port or 80, tls=None, connect_s=connect_s)
        if self._tls is None:
            self._tls = tls_context(self._ca)
        return HttpConnection(parts.hostname or "", parts.port or 443, tls=self._tls, connect_s=connect_s)

    def _look_around(self, url: str) -> None:
        """The current server has not answered for a while. If another one is the leader, requests go there."""
        own = self._health(url)
        others = {each: health for each in self._servers.others if (health := self._health(each)) is not None}
        leader = overtaken_by(url, own, others)
        if leader and (self.url != url or self._servers.move(leader)):
            raise Overtaken(f"it does not answer, and {leader} leads")

    def _health(self, url: str) -> HealthView | None:
        from corral.wire.api.record import HealthView

        try:
            connection = self._connected(url, HEALTH_S)
            try:
                head = connection.send("GET", split_url(url).path + HEALTH_PATH, {}, None, HEALTH_S)
                return msgspec.json.decode(head.read(), type=HealthView)
            finally:
                connection.close()
        except (OSError, msgspec.MsgspecError):
            return None

    def _give_back(self, url: str, head: ResponseHead) -> None:
        if head.keeps and len(self._idle) < _KEPT:
            self._idle.append((url, head.connection))
        else:
            head.connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()


class _Stream:
    """A streamed response. Closing it closes its connection."""

    def __init__(self, url: str, head: ResponseHead) -> None:
        self._url, self._head = url, head

    def more(self, seconds: float) -> bytes:
        try:
            self._head.connection.patience(seconds)
            return self._head.more()
        except OSError as error:
            self.close()
            raise lost(self._url, error, connected=True) from None

    def close(self) -> None:
        self._head.connection.close()


def lost(url: str, error: Exception, *, connected: bool) -> Unreachable:
    """The error if there is no answer."""
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(f"no server answers at {url}", "start one with: corral up", connected=connected)
    if isinstance(error, TimeoutError):
        what = "does not answer" if connected else "cannot be reached"
        hint = "to find the cause: corral doctor"
        return Unreachable(f"the server at {url} {what} in time", hint, connected=connected)
    if type(error).__name__ == "SSLCertVerificationError":  # by name, so that ssl need not be imported
        why = getattr(error, "verify_message", "") or str(error)
        hint = "for a private certificate authority set CORRAL_CA to its file, or: corral login --ca FILE"
        return Unreachable(f"the server at {url} is not trusted: {why}", hint, connected=connected)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    what = f"the connection to {url} was lost" if connected else f"the server at {url} cannot be reached"
    return Unreachable(f"{what}: {why}", "check the address, or corral doctor", connected=connected)
