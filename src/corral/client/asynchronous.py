"""``AsyncClient``: the calls of ``Client`` as coroutines, over httpx2; ``async for`` where ``Client`` has ``for``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import httpx2
import msgspec

from corral.client.blocking import ANSWER_S, CONNECT_S, QUICK_CONNECT_S, lost, split_url, tls_context
from corral.client.call import SILENCE_S, ApiCall, Item, More, Open, Pause, RawAnswer, Series
from corral.client.calls import Calls
from corral.client.credentials import find_credentials
from corral.client.errors import Unreachable
from corral.client.retry import patience_for
from corral.client.servers import HOPS, Servers
from corral.client.stale_answers import HEALTH_PATH, HEALTH_S, LOOK_AFTER_S, LOOK_AGAIN_S, Overtaken, overtaken_by
from corral.wire.api.record import HealthView

T = TypeVar("T")

_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class AsyncClient(Calls):
    """A server, as one user sees it; arguments as for ``Client``. Use it in ``async with``, or call ``close``."""

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
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        if url is None or token is None:
            found = find_credentials()
            allow_plain_http = allow_plain_http or (found.allow_plain_http and url in (None, found.url))
            url = url or found.url
            token = token or found.token
            ca = found.ca if ca is None else ca
        servers = self._servers = Servers(url, allow_plain=allow_plain_http)
        for place in self._servers.all:
            split_url(place)
        self.patience = patience_for(servers, patience_s, first_patience_s)
        self._connect_s = QUICK_CONNECT_S if self._servers.others else CONNECT_S
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=httpx2.Timeout(answer_s, connect=self._connect_s),
            trust_env=False,
            transport=transport,
            verify=tls_context(ca) if ca else True,
        )

    @property
    def url(self) -> str:
        """The server that requests go to now."""
        return self._servers.current

    async def converse_later(self, series: Series[T], /) -> AsyncGenerator[T, None]:
        """Carry out a conversation; see ``call``."""
        answer: Any = None
        failed: Unreachable | None = None
        stream: _Stream | None = None
        try:
            while True:
                try:
                    step = series.send(answer) if failed is None else series.throw(failed)
                except StopIteration:
                    return
                answer = failed = None
                try:
                    if isinstance(step, Item):
                        yield step.value
                    elif isinstance(step, ApiCall):
                        answer = await self._ask(step)
                    elif isinstance(step, Open):
                        if stream is not None:
                            await stream.close()
                        stream, answer = await self._open(step.call)
                    elif isinstance(step, More):
                        assert stream is not None, "nothing was opened"
                        answer = await asyncio.wait_for(self._patiently(stream.more()), step.seconds)
                    elif isinstance(step, Pause):
                        await asyncio.sleep(step.seconds)
                except Unreachable as error:
                    failed = error
                except Overtaken as error:
                    failed = lost(self.url, error, connected=True)
                except (httpx2.TransportError, TimeoutError) as error:
                    failed = self._lost(error)
                    self._servers.lost()
        finally:
            if stream is not None:
                await stream.close()

    def _request(self, call: ApiCall[Any], **more: Any) -> httpx2.Request:
        body = None if call.body is None else msgspec.json.encode(call.body)
        headers = {**call.headers, "Content-Type": "application/json"} if body is not None else dict(call.headers)
        return self._http.build_request(call.method, self.url + call.target, content=body, headers=headers, **more)

    def _is_sent_on(self, response: httpx2.Response, hops: int) -> bool:
        """Another server is the leader; requests go there from now on."""
        return response.status_code == 307 and self._servers.follow(response.headers.get("location", ""), hops)

    async def _ask(self, call: ApiCall[Any], hops: int = HOPS) -> RawAnswer:
        try:
            response = await self._patiently(self._http.send(self._request(call)))
        except Overtaken:
            if not call.repeatable or not hops:
                raise
            return await self._ask(call, hops - 1)
        if self._is_sent_on(response, hops):
            return await self._ask(call, hops - 1)
        if response.status_code == 503 and self._servers.others:
            self._servers.lost()  # the next server may know the leader
        return _answer(response, response.content)

    async def _open(self, call: ApiCall[Any], hops: int = HOPS) -> tuple[_Stream | None, RawAnswer]:
        timeout = httpx2.Timeout(SILENCE_S, connect=self._connect_s)
        response = await self._patiently(self._http.send(self._request(call, timeout=timeout), stream=True))
        if response.status_code == 307:
            await response.aclose()
        if self._is_sent_on(response, hops):
            return await self._open(call, hops - 1)
        if response.status_code < 400:
            return _Stream(response), _answer(response)
        body = await response.aread()
        await response.aclose()
        return None, _answer(response, body)

    async def _patiently(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a request. While it is pending, the health of all servers is checked regularly; if the server
        does not answer and another one is the leader, requests go there from now on."""
        url, wait_s = self.url, LOOK_AFTER_S
        task = asyncio.ensure_future(work)
        try:
            while True:
                await asyncio.wait([task], timeout=wait_s if self._servers.others else None)
                if task.done():
                    return await task
                await self._look_around(url)
                wait_s = LOOK_AGAIN_S
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _look_around(self, url: str) -> None:
        servers = [url, *(each for each in self._servers.others if each != url)]
        own, *others = await asyncio.gather(*map(self._health, servers))
        found = {each: health for each, health in zip(servers[1:], others, strict=True) if health is not None}
        leader = overtaken_by(url, own, found)
        if leader and (self.url != url or self._servers.move(leader)):
            raise Overtaken(f"it does not answer, and {leader} leads")

    async def _health(self, url: str) -> HealthView | None:
        try:
            answer = await self._http.get(url + HEALTH_PATH, timeout=HEALTH_S)
            return msgspec.json.decode(answer.content, type=HealthView)
        except (httpx2.TransportError, msgspec.MsgspecError):
            return None

    def _lost(self, error: Exception) -> Unreachable:
        connected = not isinstance(error, _NEVER_SENT)
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            return lost(self.url, TimeoutError(), connected=connected)
        if isinstance(error, httpx2.ConnectError):
            return lost(self.url, ConnectionRefusedError(), connected=False)
        return lost(self.url, error, connected=connected)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"


class _Stream:
    """A streamed response."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response, self._parts = response, response.aiter_raw()

    async def more(self) -> bytes:
        async for part in self._parts:
            if part:
                return part
        return b""

    async def close(self) -> None:
        await self._response.aclose()


def _answer(response: httpx2.Response, body: bytes = b"") -> RawAnswer:
    return RawAnswer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)
