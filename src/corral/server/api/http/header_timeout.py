"""Limits on a connection before there is a request: size and time of the head, padding of the body, pipelined requests.

The endpoint sees a request only when its head is complete; before that there is only the protocol, so the limits are
here. Without them one endless header would take all memory, and a few thousand idle connections would keep all other
clients out. Knows bytes and times. Must not know routes or rights; unread answers are handled in ``unread_answers``.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from corral.server.api.http.problems import PROBLEM_TYPE, ApiError
from corral.server.api.http.settings import ApiSettings
from corral.server.api.http.unread_answers import Unread, WatchedTransport

_TOO_SLOW = ApiError(
    408, "head_too_slow", "the head of the request did not arrive in time", "send it whole, or connect again later"
)
_MALFORMED = ApiError(400, "bad_request", "this is not a valid HTTP/1.1 request")
_PADDED = ApiError(400, "bad_request", "the body has more padding than content", "send plain chunks without extensions")
_TOO_BUSY = ApiError(503, "too_busy", "the server is receiving too many requests", "try again")
_AHEAD_MAX = 8  # pipelined requests that wait for an earlier one to be answered
_PADDING_FACTOR = 8  # a chunk of one byte is sent as six
_LINGER_S = 1.0  # time for a refused client to read the error
_DROPPED_MAX = 1 << 20  # bytes that are read from it and dropped meanwhile


def timed_heads(settings: ApiSettings) -> type[Bounded]:
    """The protocol class of uvicorn with the limits of these settings."""
    heads = HeaderLimits(settings)

    class Configured(Bounded):
        shared = heads

    return Configured


class HeaderLimits:
    """What all connections share: the limits, and the total size of incomplete heads."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.held = 0
        self.unread = Unread(settings.send_timeout_s, settings.unread_bytes_max)
        why = f"the head of the request has more than {settings.head_bytes_max} bytes or {settings.headers_max} headers"
        self.too_long = ApiError(431, "head_too_long", why, "send fewer or shorter headers")


class _Refused(Exception):
    """Ends a connection from within the parser."""

    def __init__(self, why: ApiError) -> None:
        super().__init__(why.code)
        self.why = why


class Bounded(HttpToolsProtocol):
    """The protocol of one connection. ``_running``: the request being answered; uvicorn's ``cycle`` is the newest
    request, which may have to wait."""

    shared: HeaderLimits
    _running: RequestResponseCycle | None = None
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _is_in_body = False
    _is_refused = False
    _head_bytes = 0  # of the head being read; counted in `shared.held`
    _raw_bytes = 0  # all bytes after the head
    _body_bytes = 0  # those of them that are the body
    _dropped = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(WatchedTransport(transport, self.loop, self.shared.unread))  # type: ignore[arg-type]
        self._wait(self.shared.settings.head_timeout_s, self._give_up_head)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._drop(len(data))
            return
        if self._is_in_head:
            self._count_head(len(data))
        else:
            self._raw_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
            self._check()
        except httptools.HttpParserCallbackError as error:
            self.refuse(error.__context__.why if isinstance(error.__context__, _Refused) else _MALFORMED)
        except httptools.HttpParserError:
            self.refuse(_MALFORMED)
        except httptools.HttpParserUpgrade:
            self.refuse(_MALFORMED)
        except _Refused as refused:
            self.refuse(refused.why)

    def _drop(self, size: int) -> None:
        """Drop what a refused client still sends; after ``_DROPPED_MAX`` bytes stop reading."""
        self._dropped += size
        if self._dropped > _DROPPED_MAX:
            self.flow.pause_reading()

    def _check(self) -> None:
        """Check what the parser buffered without a callback: a header, a URL, an extension of a chunk. Start a timer if
        the request is incomplete; most requests are complete by now and need none."""
        settings = self.shared.settings
        if self._is_in_head:
            if self._head_bytes > settings.head_bytes_max:
                raise _Refused(self.shared.too_long)
            if self.shared.held > settings.heads_bytes_max and self._head_bytes > settings.heads_bytes_max // 10_000:
                raise _Refused(_TOO_BUSY)
        elif self._raw_bytes - self._body_bytes > settings.head_bytes_max + _PADDING_FACTOR * self._body_bytes:
            raise _Refused(_PADDED)
        elif len(self.headers) > settings.headers_max:
            raise _Refused(self.shared.too_long)
        if self._timer is None and self._is_in_head:
            self._wait(settings.head_timeout_s, self._give_up_head)
        elif self._timer is None and self._is_in_body:  # the endpoint answers; this closes what it no longer reads
            self._wait(2 * settings.body_timeout_s, self._give_up_body)

    # --- callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        self._end_wait()
        self._count_head(-self._head_bytes)
        self._is_in_head, self._is_in_body = False, True
        self._raw_bytes = self._body_bytes = 0
        settings = self.shared.settings
        if len(self.headers) > settings.headers_max or len(self.url) > settings.head_bytes_max:
            raise _Refused(self.shared.too_long)
        if len(self.pipeline) >= _AHEAD_MAX:
            raise _Refused(_MALFORMED)
        super().on_headers_complete()
        self.headers = []  # trailers from here on: counted and ignored
        if self.pipeline:  # they are few, and a disconnect is noticed only while reading
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._end_wait()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self._count_head(-self._head_bytes)
        self.shared.unread.forget(self.transport)
        super().connection_lost(exc)
        self._disconnect_running()

    # --- end of a connection ------------------------------------------------------------------------------------------

    def refuse(self, why: ApiError) -> None:
        """Send the error, unless another answer is under way, and close. What still arrives is dropped for a second:
        closing immediately would discard the answer of a client that is still sending."""
        self._is_refused = True
        self._end_wait()
        self._count_head(-self._head_bytes)
        if self.transport.is_closing():
            return
        if self.pipeline or (self._is_answering() and (self._running is not self.cycle or self.cycle.response_started)):
            self.transport.abort()
            return
        self._disconnect_running()
        self.transport.write(_encoded(why))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _disconnect_running(self) -> None:
        """Mark the running request as disconnected: uvicorn does so only for the newest request."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _give_up_head(self) -> None:
        self._timer = None
        self.refuse(_TOO_SLOW)

    def _give_up_body(self) -> None:
        self._timer = None
        self.transport.abort()

    def _wait(self, seconds: float, then: Any) -> None:
        self._end_wait()
        self._timer = self.loop.call_later(seconds, then)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count_head(self, more: int) -> None:
        self._head_bytes += more
        self.shared.held += more


def _encoded(why: ApiError) -> bytes:
    body = msgspec.json.encode(why.problem(""))
    head = (
        f"HTTP/1.1 {why.status} {HTTPStatus(why.status).phrase}\r\n"
        f"content-type: {PROBLEM_TYPE.decode()}\r\ncontent-length: {len(body)}\r\n"
    )
    more = "".join(f"{name}: {value}\r\n" for name, value in ({**why.headers, "Connection": "close"}).items())
    return head.encode() + more.encode() + b"\r\n" + body
