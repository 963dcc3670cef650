"""``AsyncClient``: the calls of ``Client`` as coroutines; ``async for`` where ``Client`` has ``for``.

Requests are sent by threads that share one `Transport`. While a thread waits for bytes, cancelling the coroutine ends
the wait and closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from corral.client.call import ApiCall, Item, More, Open, Pause, Series
from corral.client.calls import Calls
from corral.client.errors import Unreachable
from corral.client.jobs import Document, from_here
from corral.client.retry import patience_for
from corral.client.transport import ANSWER_S, AnswerStream, Flight, Transport
from corral.io.http import HttpConnection

if TYPE_CHECKING:
    from corral.client.handles.batch_handle import AsyncBatchHandle

T = TypeVar("T")

AT_ONCE = 100  # requests and streams at the same time; more wait for their turn
_KEPT = 20


class AsyncClient(Calls):
    """A server, as one user sees it; arguments as for ``Client``. Use it in ``async with``, or call ``aclose``."""

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
        self._transport = Transport(url, token, answer_s=answer_s, ca=ca, allow_plain_http=allow_plain_http, kept=_KEPT)
        self.patience = patience_for(self._transport.servers, patience_s, first_patience_s)
        self._threads = ThreadPoolExecutor(AT_ONCE, "corral-client")
        self._flights: set[Flight] = set()

    def batch(self, name: str) -> AsyncBatchHandle:
        """A batching queue: ``await client.batch("embed").map(items)``."""
        from corral.client.handles.batch_handle import AsyncBatchHandle

        return AsyncBatchHandle(self, name)

    @property
    def url(self) -> str:
        """The server that requests go to now."""
        return self._transport.url

    async def publish(
        self,
        document: Document,
        *,
        key: str = "",
        broker: str = "",
        is_urgent: bool = False,
        export: str | None = None,
        venv: str | None = None,
    ) -> str:
        """Submit one job through a broker, where it waits if no server runs; its message id, when it is stored there.

        Parameters as for ``submit``. ``key``: the message id; what is published with the same one is one job.
        ``broker``: address, such as ``amqp://ann@mq.example/corral``; default: CORRAL_BROKER, with the password in
        CORRAL_BROKER_PASSWORD. ``is_urgent``: taken before all that is not.
        """
        return (
            await self.publish_many(
                [document], keys=[key], broker=broker, is_urgent=is_urgent, export=export, venv=venv
            )
        )[0]

    async def publish_many(
        self,
        documents: Sequence[Document],
        *,
        keys: Sequence[str] = (),
        broker: str = "",
        is_urgent: bool = False,
        export: str | None = None,
        venv: str | None = None,
    ) -> list[str]:
        """Publish several documents, each a job of its own; their message ids. Parameters as for ``publish``."""
        from corral.client.publishing.publish import broker_address, outgoing, published

        messages = outgoing([from_here(each, export, venv) for each in documents], keys)
        return await published(broker_address(broker), self._transport.token, messages, is_urgent=is_urgent)

    async def publish_items(self, batch: str, items: Sequence[Any], *, key: str = "", broker: str = "") -> str:
        """Publish items for a batching queue as one message; its id. Each item gets the id ``KEY-NUMBER``."""
        from corral.client.publishing.publish import broker_address, outgoing, published

        messages = outgoing([{"items": list(items)}], [key], batch)
        return (await published(broker_address(broker), self._transport.token, messages, is_urgent=False))[0]

    async def converse_later(self, series: Series[T], /) -> AsyncGenerator[T, None]:
        """Carry out a conversation; see ``call``."""
        answer: Any = None
        lost: Unreachable | None = None
        stream: AnswerStream | None = None
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
                        answer = await self._in_thread(partial(self._transport.ask, step))
                    elif isinstance(step, Open):
                        if stream is not None:
                            stream.close()
                        stream = None
                        stream, answer = await self._in_thread(partial(self._transport.open, step.call))
                    elif isinstance(step, More):
                        assert stream is not None, "nothing was opened"
                        reading, stream = stream, None  # not closed here while a thread reads it
                        answer = await self._in_thread(partial(_more, reading, step.seconds), reading.connection)
                        stream = reading
                    elif isinstance(step, Pause):
                        await asyncio.sleep(step.seconds)
                except Unreachable as error:
                    lost = error
        finally:
            if stream is not None:
                stream.close()

    async def _in_thread(self, work: Callable[[Flight], T], connection: HttpConnection | None = None) -> T:
        flight = Flight()
        flight.use(connection)
        self._flights.add(flight)
        running = self._threads.submit(work, flight)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            flight.give_up()
            running.add_done_callback(lambda _: flight.close())
            raise
        finally:
            self._flights.discard(flight)

    async def aclose(self) -> None:
        """Close all connections."""
        for flight in self._flights:
            flight.give_up()
        self._threads.shutdown(wait=False)
        self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"


def _more(stream: AnswerStream, seconds: float, _: Flight) -> bytes:
    return stream.more(seconds)
