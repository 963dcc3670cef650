"""What a connection may cost before there is a request: how long a head may be and take, how much padding a body may
bring, how many requests may be sent in advance.

The door sees a request only when its head is whole; before that there is nothing but the protocol, so this lies there.
Without it one endless header would take all memory, and a few thousand idle connections would keep everyone else out.
Knows bytes and times. Must not know routes or rights; answers that nobody reads are ``writes``' matter.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from corral.server.api.entry.problems import PROBLEM_TYPE, Unable
from corral.server.api.entry.settings import ApiSettings
from corral.server.api.entry.writes import Unread, WatchedTransport

_TOO_SLOW = Unable(
    408, "head_too_slow", "the head of the request did not arrive in time", "send it whole, or connect again later"
)
_MALFORMED = Unable(400, "bad_request", "this is not a request in HTTP/1.1")
_PADDED = Unable(400, "bad_request", "the body has more padding than content", "send plain chunks without extensions")
_TOO_BUSY = Unable(503, "too_busy", "too many heads of requests are being read at this moment", "try again")
_AHEAD_MAX = 8  # requests that were sent before the one ahead of them was answered
_PADDING_FACTOR = 8  # a chunk of one byte is sent as six
_LINGER_S = 1.0  # for the refused to read why
_DROPPED_MAX = 1 << 20  # bytes that are read from them meanwhile


def timed_heads(settings: ApiSettings) -> type[HttpToolsProtocol]:
    """The protocol of uvicorn, within the bounds of these settings."""
    heads = Heads(settings)

    class Bounded(_Bounded):
        shared = heads

    return Bounded


class Heads:
    """What all connections share: the bounds, and how much of unfinished heads there is."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.held = 0
        self.unread = Unread(settings.send_timeout_s, settings.unread_bytes_max)
        why = f"the head of the request has more than {settings.head_bytes_max} bytes or {settings.headers_max} headers"
        self.too_long = Unable(431, "head_too_long", why, "send fewer or shorter headers")


class _Refused(Exception):
    """Ends a connection from within the parser."""

    def __init__(self, why: Unable) -> None:
        super().__init__(why.code)
        self.why = why


class _Bounded(HttpToolsProtocol):
    """``_running``: the request that is being answered; ``cycle`` of uvicorn is the newest, which may have to wait."""

    shared: Heads
    _running: RequestResponseCycle | None = None
    _patience: asyncio.TimerHandle | None = None
    _is_in_head = True
    _is_refused = False
    _head_bytes = 0  # of the head that is being read; counted in `shared.held`
    _raw_bytes = 0  # after the head: all that came
    _body_bytes = 0  # and what of it was the body
    _trailers = 0
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
            self._refuse(error.__context__.why if isinstance(error.__context__, _Refused) else _MALFORMED)
        except httptools.HttpParserError:
            self._refuse(_MALFORMED)
        except httptools.HttpParserUpgrade:
            self._refuse(_MALFORMED)
        except _Refused as refused:
            self._refuse(refused.why)

    def _drop(self, size: int) -> None:
        """A refused client may go on sending for a moment; what is much waits on its side until the end."""
        self._dropped += size
        if self._dropped > _DROPPED_MAX:
            self.flow.pause_reading()

    def _check(self) -> None:
        """What the parser took in without calling anybody: a value, a name, an address, an extension of a chunk."""
        settings = self.shared.settings
        if self._is_in_head:
            if self._head_bytes > settings.head_bytes_max:
                raise _Refused(self.shared.too_long)
            if self.shared.held > settings.heads_bytes_max and self._head_bytes > settings.heads_bytes_max // 10_000:
                raise _Refused(_TOO_BUSY)
        elif self._raw_bytes - self._body_bytes > settings.head_bytes_max + _PADDING_FACTOR * self._body_bytes:
            raise _Refused(_PADDED)

    # --- what the parser finds ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        if self._patience is None:
            self._wait(self.shared.settings.head_timeout_s, self._give_up_head)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.shared.settings.head_bytes_max:
            raise _Refused(self.shared.too_long)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here as well; they are counted and not kept."""
        if not self._is_in_head:
            self._trailers += 1
            if self._trailers > self.shared.settings.headers_max:
                raise _Refused(self.shared.too_long)
            return
        super().on_header(name, value)
        if len(self.headers) > self.shared.settings.headers_max:
            raise _Refused(self.shared.too_long)

    def on_headers_complete(self) -> None:
        self._count_head(-self._head_bytes)
        self._is_in_head, self._raw_bytes, self._body_bytes, self._trailers = False, 0, 0, 0
        if len(self.pipeline) >= _AHEAD_MAX:
            raise _Refused(_MALFORMED)
        # the door answers what is too slow; this ends a body that nobody reads any more
        self._wait(2 * self.shared.settings.body_timeout_s, self._give_up_body)
        super().on_headers_complete()
        if self.pipeline:  # they are few, and only who reads notices that a client has gone
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._end_wait()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self._count_head(-self._head_bytes)
        self.shared.unread.forget(self.transport)
        super().connection_lost(exc)
        self._let_go_of_running()

    # --- how a connection ends ----------------------------------------------------------------------------------------

    def _refuse(self, why: Unable) -> None:
        """Say why, unless another answer is under way, and close. What still comes is dropped for a moment: closing at
        once would take the answer away from a client that is still sending."""
        self._is_refused = True
        self._end_wait()
        self._count_head(-self._head_bytes)
        if self.transport.is_closing():
            return
        if self.pipeline or (self._is_answering() and (self._running is not self.cycle or self.cycle.response_started)):
            self.transport.abort()
            return
        self._let_go_of_running()
        self.transport.write(_told(why))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _let_go_of_running(self) -> None:
        """uvicorn tells the newest request only that its client is gone, though an older one may be answered still."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _give_up_head(self) -> None:
        self._patience = None
        self._refuse(_TOO_SLOW)

    def _give_up_body(self) -> None:
        self._patience = None
        self.transport.abort()

    def _wait(self, seconds: float, then: Any) -> None:
        self._end_wait()
        self._patience = self.loop.call_later(seconds, then)

    def _end_wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _count_head(self, more: int) -> None:
        self._head_bytes += more
        self.shared.held += more


def _told(why: Unable) -> bytes:
    body = msgspec.json.encode(why.problem(""))
    head = (
        f"HTTP/1.1 {why.status} {HTTPStatus(why.status).phrase}\r\n"
        f"content-type: {PROBLEM_TYPE.decode()}\r\ncontent-length: {len(body)}\r\n"
    )
    return head.encode() + b"connection: close\r\n\r\n" + body
