"""Streamed answers: sent part by part until they end, the client disconnects or stops reading, or the server stops.

Limits how many there may be, and checks again whether their readers may still read. Knows nothing about the content.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing

import structlog
from starlette.types import Receive, Send

from corral.server.api.http.problems import ApiError
from corral.server.api.http.request import ApiRequest, Shared, StreamAnswer

log = structlog.get_logger(__name__)


_FEW = 2  # streams that one user may take from the reserve


class Opened:
    """One stream. ``over`` is set when its reader has lost the right to read it."""

    def __init__(self, request: ApiRequest, holds: Callable[[], bool]) -> None:
        self.user = request.user
        self.token = request.principal.token
        self.address = request.address
        self._request = request
        self._holds = holds
        self.over = asyncio.Event()

    def check(self) -> None:
        if not self._request.is_alive or not self._holds():
            self.over.set()


class Streams:
    """All open streams, counted by token, user and address."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.open: set[Opened] = set()
        self._count: Counter[tuple[str, str]] = Counter()
        self._watching: asyncio.Task[None] | None = None

    async def send(
        self, request: ApiRequest, flow: StreamAnswer, request_id: str, receive: Receive, send: Send
    ) -> None:
        """Send until the first of the possible ends; it cancels the others."""
        stream = self._opened(request, flow)
        ends = [
            asyncio.ensure_future(self._parts(flow, request_id, send)),
            asyncio.ensure_future(_until_gone(receive)),
            asyncio.ensure_future(self.shared.closing.wait()),
            asyncio.ensure_future(stream.over.wait()),
        ]
        expiry = self._until_expiry(request, stream)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if expiry is not None:
                expiry.cancel()
            self._closed(stream)
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        error = None if ends[0].cancelled() else ends[0].exception()
        if error is not None and not isinstance(error, TimeoutError):
            log.error("stream_failed", request_id=request_id, exc_info=error)
        if ends[1].cancelled() and error is None:  # the client is still connected: end its response properly
            await send({"type": "http.response.body", "body": b""})

    # --- limits -------------------------------------------------------------------------------------------------------

    def _opened(self, request: ApiRequest, flow: StreamAnswer) -> Opened:
        stream = Opened(request, flow.holds)
        why = self._why_not(stream)
        if why:
            raise ApiError(429, "too_many_streams", why, "close some streams", headers={"Retry-After": "5"})
        self.open.add(stream)
        self._count.update(_keys(stream))
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return stream

    def _why_not(self, stream: Opened) -> str:
        settings = self.shared.settings
        for key, most, whose in zip(
            _keys(stream),
            (settings.streams_per_token, settings.streams_per_user, settings.streams_per_address),
            ("this token has", f"{stream.user} has", "this address has"),
            strict=True,
        ):
            if self._count[key] >= most:
                return f"{whose} {most} streams open, which is the limit"
        left = settings.streams_max - len(self.open)
        if left <= 0 or (left <= settings.streams_reserve and self._count["user", stream.user] >= _FEW):
            return f"{len(self.open)} streams are open; the rest are reserved for users who have none"
        return ""

    def _closed(self, stream: Opened) -> None:
        self.open.discard(stream)
        for key in _keys(stream):
            self._count[key] -= 1
            if not self._count[key]:
                del self._count[key]
        if not self.open and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    # --- readers that lost their rights -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check all streams again whenever accounts change; one task for all of them."""
        service, seen = self.shared.service, None
        while True:
            news = service.news  # taken before looking: every later change sets it
            accounts = service.accounts
            if (accounts, accounts.version) != seen:
                seen = (accounts, accounts.version)
                for stream in list(self.open):
                    stream.check()
            await news.wait()

    def _until_expiry(self, request: ApiRequest, stream: Opened) -> asyncio.TimerHandle | None:
        if request.principal.expires_ms is None:
            return None
        left_s = (request.principal.expires_ms - request.service.now_ms()) / 1000
        return asyncio.get_running_loop().call_later(max(left_s, 0.0), stream.over.set)

    async def _parts(self, flow: StreamAnswer, request_id: str, send: Send) -> None:
        head = [
            (b"content-type", flow.kind.encode()),
            (b"x-request-id", request_id.encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"x-accel-buffering", b"no"),
            *((name.lower().encode(), value.encode("latin-1")) for name, value in flow.headers),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        async with aclosing(flow.parts) as parts:
            async for part in parts:
                async with asyncio.timeout(self.shared.settings.send_timeout_s):
                    await send({"type": "http.response.body", "body": part, "more_body": True})


def _keys(stream: Opened) -> tuple[tuple[str, str], ...]:
    return ("token", stream.token), ("user", stream.user), ("address", stream.address)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
