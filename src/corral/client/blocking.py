"""``Client``: blocking calls. Safe to use from several threads."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from corral.client.call import ApiCall, Item, More, Open, Pause, Series
from corral.client.calls import Calls
from corral.client.errors import Unreachable
from corral.client.jobs import Document, from_here
from corral.client.retry import patience_for
from corral.client.transport import ANSWER_S, AnswerStream, Transport

if TYPE_CHECKING:
    from corral.client.handles.batch_handle import BatchHandle

T = TypeVar("T")


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
        self._transport = Transport(url, token, answer_s=answer_s, ca=ca, allow_plain_http=allow_plain_http)
        self.patience = patience_for(self._transport.servers, patience_s, first_patience_s)

    @property
    def url(self) -> str:
        """The server that requests go to now."""
        return self._transport.url

    def batch(self, name: str) -> BatchHandle:
        """A batching queue: ``client.batch("embed").map(items)``."""
        from corral.client.handles.batch_handle import BatchHandle

        return BatchHandle(self, name)

    def publish(
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
            self.publish_many([document], keys=[key], broker=broker, is_urgent=is_urgent, export=export, venv=venv)
        )[0]

    def publish_many(
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
        import asyncio  # slow to import

        from corral.client.publishing.publish import broker_address, outgoing, published

        messages = outgoing([from_here(each, export, venv) for each in documents], keys)
        return asyncio.run(published(broker_address(broker), self._transport.token, messages, is_urgent=is_urgent))

    def publish_items(self, batch: str, items: Sequence[Any], *, key: str = "", broker: str = "") -> str:
        """Publish items for a batching queue as one message; its id. Each item gets the id ``KEY-NUMBER``."""
        import asyncio  # slow to import

        from corral.client.publishing.publish import broker_address, outgoing, published

        messages = outgoing([{"items": list(items)}], [key], batch)
        return (asyncio.run(published(broker_address(broker), self._transport.token, messages, is_urgent=False)))[0]

    def converse(self, series: Series[T], /) -> Generator[T, None, None]:
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
                        answer = self._transport.ask(step)
                    elif isinstance(step, Open):
                        if stream is not None:
                            stream.close()
                        stream, answer = self._transport.open(step.call)
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
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"
