"""Sends requests to the server that leads, over connections that are kept open; both clients use it.

Blocking, and safe to use from several threads: each request has its own connection while it lasts. Knows servers,
connections and the errors for their failures, not when a request is retried.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from corral.client.call import SILENCE_S, ApiCall, RawAnswer
from corral.client.credentials import find_credentials, renewed
from corral.client.errors import BadCredentials, Unreachable
from corral.client.servers import HOPS, Servers
from corral.client.stale_answers import HEALTH_PATH, HEALTH_S, LOOK_AFTER_S, LOOK_AGAIN_S, Overtaken, overtaken_by
from corral.io.http import HttpConnection, Interrupted, ResponseHead, connect, fetch, split_url

if TYPE_CHECKING:
    from ssl import SSLContext

    from corral.wire.api.record import HealthView

CONNECT_S = 5.0
QUICK_CONNECT_S = 2.0  # if there is another server to try
ANSWER_S = 60.0
_KEPT = 8


class Transport:
    """``kept``: how many idle connections are kept open. Without an address or a token: those of the environment."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        *,
        answer_s: float = ANSWER_S,
        ca: str | None = None,
        allow_plain_http: bool = False,
        kept: int = _KEPT,
    ) -> None:
        if url is None or token is None:
            found = find_credentials()
            if found.refresh_token and not token:
                found = renewed(found)
            allow_plain_http = allow_plain_http or (found.allow_plain_http and url in (None, found.url))
            url = url or found.url
            token = token or found.token
            ca = found.ca if ca is None else ca
        self.servers = Servers(url, allow_plain=allow_plain_http)
        for place in self.servers.all:
            parts = split_url(place)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise BadCredentials(f"{place!r} is not the address of a server", "write it like http://127.0.0.1:7411")
        self._answer_s = answer_s
        self._ca = ca or ""
        self._tls: SSLContext | None = None
        self.token = token
        self._headers = {"Accept": "application/json"}
        if token:  # to sign in, none is needed
            self._headers["Authorization"] = f"Bearer {token}"
        self._kept = kept
        self._idle: list[tuple[str, HttpConnection]] = []

    @property
    def url(self) -> str:
        """The server that requests go to now."""
        return self.servers.current

    def ask(self, call: ApiCall[Any], flight: Flight | None = None, hops: int = HOPS) -> RawAnswer:
        """The response to a request."""
        url = self.url
        try:
            head = self._send(url, call, self._answer_s, flight)
            try:
                body = head.read()
                if flight is not None:
                    flight.use(None)
            except BaseException as error:
                self._fail(url, error, head.connection)
        except Overtaken as silent:
            if not call.repeatable or not hops:
                raise lost(url, silent, connected=True) from None
            return self.ask(call, flight, hops - 1)
        if head.keeps and len(self._idle) < self._kept:
            self._idle.append((url, head.connection))
        else:
            head.connection.close()
        if self._is_sent_on(head, hops):
            return self.ask(call, flight, hops - 1)
        if head.status == 503 and self.servers.others:
            self.servers.lost()  # the next server may know the leader
        return RawAnswer(head.status, head.headers, body)

    def open(
        self, call: ApiCall[Any], flight: Flight | None = None, hops: int = HOPS
    ) -> tuple[AnswerStream | None, RawAnswer]:
        """A response that is read as it arrives, and its head; no stream if the request was refused."""
        url = self.url
        try:
            head = self._send(url, call, SILENCE_S, flight)
        except Overtaken as silent:
            if not hops:
                raise lost(url, silent, connected=True) from None
            return self.open(call, flight, hops - 1)
        if head.status == 307:
            head.connection.close()
        if self._is_sent_on(head, hops):
            return self.open(call, flight, hops - 1)
        stream = AnswerStream(url, head)
        if head.status < 400:
            return stream, RawAnswer(head.status, head.headers)
        body = b""
        while data := stream.more(self._answer_s):
            body += data
        stream.close()
        return None, RawAnswer(head.status, head.headers, body)

    def _is_sent_on(self, head: ResponseHead, hops: int) -> bool:
        """Another server is the leader; requests go there from now on."""
        return head.status == 307 and self.servers.follow(head.headers.get("location", ""), hops)

    def _send(self, url: str, call: ApiCall[Any], timeout_s: float, flight: Flight | None) -> ResponseHead:
        body = None if call.body is None else msgspec.json.encode(call.body)
        headers = {**self._headers, **call.headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection: HttpConnection | None = None
        try:
            connection = self._take(url)
            if flight is not None:
                flight.use(connection)
            if self.servers.others:
                connection.watch(partial(self._look_around, url), LOOK_AFTER_S, LOOK_AGAIN_S)
            return connection.send(call.method, split_url(url).path + call.target, headers, body, timeout_s)
        except BaseException as error:
            self._fail(url, error, connection)

    def _fail(self, url: str, error: BaseException, connection: HttpConnection | None) -> NoReturn:
        """Close the connection. If it was lost, the next request goes to the next server."""
        if connection is not None:
            connection.close()
        if not isinstance(error, OSError) or isinstance(error, Overtaken):
            raise error
        if url == self.url:
            self.servers.lost()
        raise lost(url, error, connected=connection is not None) from None

    def _take(self, url: str) -> HttpConnection:
        while self._idle:
            there, connection = self._idle.pop()
            if there == url and connection.is_quiet:
                return connection
            connection.close()  # the server closed the connection, or requests now go to another server
        return connect(url, QUICK_CONNECT_S if self.servers.others else CONNECT_S, self._tls_for(url))

    def _tls_for(self, url: str) -> SSLContext | None:
        if self._tls is None and url.startswith("https:"):
            self._tls = _tls_context(self._ca)
        return self._tls

    def _look_around(self, url: str) -> None:
        """The current server has not answered for a while. If another one is the leader, requests go there."""
        own = self._health(url)
        others = {each: health for each in self.servers.others if (health := self._health(each)) is not None}
        leader = overtaken_by(url, own, others)
        if leader and (self.url != url or self.servers.move(leader)):
            raise Overtaken(f"it does not answer, and {leader} is the leader")

    def _health(self, url: str) -> HealthView | None:
        from corral.wire.api.record import HealthView

        try:
            _, body = fetch("GET", url + HEALTH_PATH, {}, timeout_s=HEALTH_S, tls=self._tls_for(url))
            return msgspec.json.decode(body, type=HealthView)
        except (OSError, msgspec.MsgspecError):
            return None

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop()[1].close()


class Flight:
    """One request, which another thread may give up: then it raises ``Interrupted``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: HttpConnection | None = None
        self._is_given_up = False

    def use(self, connection: HttpConnection | None) -> None:
        """The request uses this connection from now on. None: it is complete, and others may use the connection."""
        with self._lock:
            if self._is_given_up:
                raise Interrupted
            self._connection = connection

    def give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
            if self._connection is not None:
                self._connection.interrupt()

    def close(self) -> None:
        """Close what the request has left open: a stream that is no longer needed."""
        if self._connection is not None:
            self._connection.close()


class AnswerStream:
    """A streamed response. Closing it closes its connection."""

    def __init__(self, url: str, head: ResponseHead) -> None:
        self._url, self._head = url, head
        self.connection = head.connection

    def more(self, seconds: float) -> bytes:
        try:
            self.connection.patience(seconds)
            return self._head.more()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise lost(self._url, error, connected=True) from None
            raise

    def close(self) -> None:
        self.connection.close()


def _tls_context(ca: str) -> SSLContext:
    """The TLS context; ssl is imported only if it is needed."""
    import ssl

    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        why = "it contains no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
        what = f"the certificate authority in {ca or 'the files of this machine'} cannot be read: {why}"
        raise BadCredentials(what, "check CORRAL_CA, or log in again") from None


def lost(url: str, error: Exception, *, connected: bool) -> Unreachable:
    """The error if there is no answer."""
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(
            f"no server answers at {url}",
            "start one here with: corral up; or use another one with: corral login",
            connected=connected,
        )
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
