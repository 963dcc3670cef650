"""Answers that go on: sent part by part, until they end, the client leaves or takes nothing, or the server goes down.

Knows how many there may be. Knows nothing of what is in them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

import structlog
from starlette.types import Receive, Send

from corral.server.api.entry.asking import Ask, Flow, Shared
from corral.server.api.entry.problems import Unable

log = structlog.get_logger(__name__)


class Streams:
    """All streams that are open."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.open: Counter[str] = Counter()

    async def send(self, ask: Ask, flow: Flow, request_id: str, receive: Receive, send: Send) -> None:
        """The possible ends race; whichever comes first cancels the others."""
        token, settings = ask.principal.token, self.shared.settings
        if self.open.total() >= settings.streams_max or self.open[token] >= settings.streams_per_token:
            why = "too many streams are open"
            raise Unable(429, "too_many_streams", why, "close some", headers={"Retry-After": "5"})
        self.open[token] += 1
        ends = [
            asyncio.ensure_future(self._parts(flow, request_id, send)),
            asyncio.ensure_future(_until_gone(receive)),
            asyncio.ensure_future(self.shared.closing.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open[token] -= 1
            if not self.open[token]:
                del self.open[token]
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        error = None if ends[0].cancelled() else ends[0].exception()
        if error is not None and not isinstance(error, TimeoutError):
            log.error("stream_failed", request_id=request_id, exc_info=error)
        if ends[1].cancelled() and error is None:  # the client is there and wants to know that this was all
            await send({"type": "http.response.body", "body": b""})

    async def _parts(self, flow: Flow, request_id: str, send: Send) -> None:
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


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
