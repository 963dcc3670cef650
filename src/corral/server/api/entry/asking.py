"""One request and its answer as values: what a handler is given, and what it may give back.

Knows nothing of sockets; handlers know nothing but this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct

from corral.core.intake.refusal import Refusal
from corral.server.api.entry.audit import Audit
from corral.server.api.entry.problems import Unable, forbidden, not_found, refused
from corral.server.api.entry.rate import Buckets
from corral.server.api.entry.seam import Service
from corral.server.api.entry.settings import ApiSettings
from corral.server.api.entry.shared_views import SharedViews
from corral.server.auth import Principal, Verb, Verdict, authorize, is_alive, may_somewhere
from corral.server.metrics import Metrics
from corral.store.lookup import RequestRow

T = TypeVar("T")

_FIRST_THREADS = 2
_REFUSALS_PER_S, _REFUSALS_BURST = 0.1, 20


class Content(Struct, frozen=True):
    """An answer that is not JSON of a known shape."""

    body: bytes
    kind: str
    headers: tuple[tuple[str, str], ...] = ()


class Flow(Struct, frozen=True):
    """An answer that goes on, as long as it ``holds``: that is asked again whenever rights change."""

    parts: AsyncGenerator[bytes]
    kind: str
    holds: Callable[[], bool]
    headers: tuple[tuple[str, str], ...] = ()


class Instead(Struct, frozen=True):
    """An answer under another status than its route's usual one."""

    status: int
    reply: Struct


Reply = Struct | Content | Flow | Instead | None


class Remembered:
    """Asks whether idempotency keys were used before. Those that come while one asks are asked together, in one go of
    a reader thread: equivalent to asking for each by itself, and under load several times cheaper."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._asked: list[tuple[str, str, asyncio.Future[RequestRow | None]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def find(self, user: str, key: str) -> RequestRow | None:
        answer: asyncio.Future[RequestRow | None] = asyncio.get_running_loop().create_future()
        self._asked.append((user, key, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await answer

    async def _ask(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                await self._answer(asked)
        finally:
            self._asking = None

    async def _answer(self, asked: list[tuple[str, str, asyncio.Future[RequestRow | None]]]) -> None:
        lookup = self._shared.service.lookup
        try:
            rows = await self._shared.look_first(lambda: [lookup.request(user, key) for user, key, _ in asked])
        except Exception as error:
            for _, _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, _, answer), row in zip(asked, rows, strict=True):
            if not answer.done():
                answer.set_result(row)


class Shared:
    """What all requests share: the service, bounds, reader threads, and the word that the server is going down."""

    def __init__(self, service: Service, settings: ApiSettings, metrics: Metrics) -> None:
        self.service, self.settings, self.metrics = service, settings, metrics
        self.closing = asyncio.Event()
        self.readers = ThreadPoolExecutor(settings.reader_threads, thread_name_prefix="reader")
        self.first_readers = ThreadPoolExecutor(_FIRST_THREADS, thread_name_prefix="first")
        self.views = SharedViews()
        self.log_readers = ThreadPoolExecutor(settings.log_threads, thread_name_prefix="logs")
        self.under_way: dict[tuple[str, str], tuple[str, asyncio.Future[Struct]]] = {}  # submissions with a key
        self.remembered = Remembered(self)
        self.refusals = Buckets(_REFUSALS_PER_S, _REFUSALS_BURST)  # that are written down
        self.audit = Audit()
        self._turns: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()
        self.places: dict[str, tuple[str, str]] = {}  # job -> queue and user, of jobs the state has let go

    async def look(self, ask: Callable[..., T], *about: Any) -> T:
        """Ask something that may take its time, in a reader thread."""
        return await self._look_in(self.readers, ask, *about)

    async def look_first(self, ask: Callable[..., T], *about: Any) -> T:
        """As ``look``, for what a submission waits for: however much is read, that is not behind it."""
        return await self._look_in(self.first_readers, ask, *about)

    async def look_at_logs(self, ask: Callable[..., T], *about: Any) -> T:
        """As ``look``, for logs: there may be hundreds who follow one."""
        return await self._look_in(self.log_readers, ask, *about)

    async def _look_in(self, threads: ThreadPoolExecutor, ask: Callable[..., T], *about: Any) -> T:
        if self.closing.is_set():
            raise Unable(503, "going_down", "the server is going down", "try again", headers={"Retry-After": "1"})
        return await asyncio.get_running_loop().run_in_executor(threads, ask, *about)

    def turn(self, *what: str) -> asyncio.Lock:
        """One after the other, of those who change the same thing in more than one place."""
        return self._turns.setdefault(what, asyncio.Lock())

    def close(self) -> None:
        """Streams end; what is being answered is answered."""
        self.closing.set()
        self.readers.shutdown(wait=False)
        self.first_readers.shutdown(wait=False)
        self.log_readers.shutdown(wait=False)


class Ask:
    """One request, read and authenticated. ``body`` is of the shape its route names, or bytes."""

    __slots__ = ("address", "body", "headers", "path", "principal", "query", "request_id", "shared")

    def __init__(
        self,
        shared: Shared,
        principal: Principal,
        request_id: str,
        path: dict[str, str],
        headers: dict[bytes, bytes],
        address: str = "",
    ) -> None:
        self.address = address  # of the client, as far as it can be told apart from others
        self.shared, self.principal, self.request_id, self.path, self.headers = (
            shared, principal, request_id, path, headers
        )  # fmt: skip
        self.query: Any = None
        self.body: Any = b""

    @property
    def service(self) -> Service:
        return self.shared.service

    @property
    def user(self) -> str:
        return self.principal.user

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def may(self, verb: Verb, queue: str = "", owner: str = "") -> bool:
        return authorize(self.service.accounts, self.principal, verb, queue, owner) is Verdict.ALLOWED

    def may_somewhere(self, verb: Verb) -> bool:
        return may_somewhere(self.service.accounts, self.principal, verb)

    @property
    def rights(self) -> Hashable:
        """What decides which queues they may see: for whom it is the same, a view of these is the same."""
        user = self.service.accounts.users.get(self.user)
        return () if user is None else tuple(sorted(user.roles)), self.principal.scope

    @property
    def is_alive(self) -> bool:
        """Whether the token is still good: streams ask again and again."""
        return is_alive(self.service.accounts, self.principal, self.service.now_ms())

    async def has_read(self, what: str) -> None:
        """What is about to be answered is of others, or of interest to others."""
        await self.shared.audit.note(self, what)

    def insist(self, verb: Verb, kind: str, name: str, queue: str = "", owner: str = "") -> None:
        """End the request unless they may: not found where they may not know that it is there."""
        verdict = authorize(self.service.accounts, self.principal, verb, queue, owner)
        if verdict is Verdict.HIDDEN:
            raise not_found(kind, name)
        if verdict is Verdict.FORBIDDEN:
            raise forbidden(verb, queue)


def accepted(answer: T | Refusal) -> T:
    """What was done; a refusal ends the request."""
    if isinstance(answer, Refusal):
        raise refused(answer)
    return answer
