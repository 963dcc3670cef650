"""One request and its answer as values: what a handler gets and what it may return.

Knows nothing about sockets; handlers know only this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct
from starlette.types import Receive, Send

from corral.core.intake.refusal import Refusal
from corral.server.api.http.audit import Audit
from corral.server.api.http.contracts import Service
from corral.server.api.http.problems import ApiError, forbidden, not_found, refused
from corral.server.api.http.rate_limit import Buckets
from corral.server.api.http.session_cookie import SessionUse
from corral.server.api.http.settings import ApiSettings
from corral.server.api.http.shared_views import Pace, SharedViews
from corral.server.api.http.throttle import FailedSignIns
from corral.server.auth import Access, Principal, Verb, authorize, is_alive, may_somewhere
from corral.server.loop import AccountCommand, Command, FleetCommand
from corral.server.metrics import Metrics
from corral.server.sign_in.ways import SignIn
from corral.store.lookup import RequestRow
from corral.wire.api.broker_intake import IntakeStatus
from corral.wire.api.jobs import ChangeAnswer

T = TypeVar("T")

_FIRST_THREADS = 2
_LIVE_PART = 0.25  # of the time of the event loop, for all changes that are sent to pages
_REFUSALS_PER_S, _REFUSALS_BURST = 0.1, 20


class Content(Struct, frozen=True):
    """An answer that is not JSON of a known shape."""

    body: bytes
    kind: str
    headers: tuple[tuple[str, str], ...] = ()


class StreamAnswer(Struct, frozen=True):
    """A streamed answer. ``holds``: whether the reader still has the right to it, checked whenever rights change."""

    parts: AsyncGenerator[bytes]
    kind: str
    holds: Callable[[], bool]
    headers: tuple[tuple[str, str], ...] = ()


class WithStatus(Struct, frozen=True):
    """An answer with another status than the usual one of its route."""

    status: int
    reply: Struct


class DuplexAnswer(Struct, frozen=True):
    """An answer that reads the body while it is sent. It sends its own head."""

    run: Callable[[Receive, Send], Awaitable[None]]


Reply = Struct | Content | StreamAnswer | DuplexAnswer | WithStatus | None


class IdempotencyKeys:
    """Looks up whether idempotency keys were used before.

    Equivalent to one lookup for each key. For speed, keys that arrive during a lookup are looked up together, in one
    call of a reader thread; under load this is several times cheaper.
    """

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
    """What all requests share: the service, limits, reader threads, and the signal that the server is shutting down."""

    def __init__(self, service: Service, settings: ApiSettings, metrics: Metrics) -> None:
        self.service = service
        self.settings = settings
        self.metrics = metrics
        self.closing = asyncio.Event()
        self.readers = ThreadPoolExecutor(settings.reader_threads, thread_name_prefix="reader")
        self.first_readers = ThreadPoolExecutor(_FIRST_THREADS, thread_name_prefix="first")
        self.views = SharedViews()
        self.log_readers = ThreadPoolExecutor(settings.log_threads, thread_name_prefix="logs")
        self.under_way: dict[tuple[str, str], tuple[str, asyncio.Future[Struct]]] = {}  # submissions with a key
        self.remembered = IdempotencyKeys(self)
        self.refusals = Buckets(_REFUSALS_PER_S, _REFUSALS_BURST)  # of records about refused access
        self.audit = Audit()
        self.sign_in = SignIn(settings.sign_in)
        self.sign_in_failures = FailedSignIns(settings.failures_max)
        self.sessions = SessionUse()
        self._turns: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()
        self.owners: dict[str, tuple[str, str]] = {}  # job -> queue and user, of jobs that are no longer in the state
        self.intakes: dict[str, tuple[float, IntakeStatus]] = {}  # as they last reported, and when
        self.channels: dict[Hashable, Any] = {}  # of viewers with the same rights, see ``handlers.live``
        self.ground_plan: Any = None  # the last map, see ``handlers.live``
        self.live_pace = Pace(_LIVE_PART)  # of these channels

    async def look(self, call: Callable[..., T], *about: Any) -> T:
        """Call something that may be slow, in a reader thread."""
        return await self._look_in(self.readers, call, *about)

    async def look_first(self, call: Callable[..., T], *about: Any) -> T:
        """As ``look``, for what a submission waits for: it has threads of its own and does not queue behind reads."""
        return await self._look_in(self.first_readers, call, *about)

    async def look_at_logs(self, call: Callable[..., T], *about: Any) -> T:
        """As ``look``, for logs: hundreds of clients may follow one."""
        return await self._look_in(self.log_readers, call, *about)

    async def _look_in(self, threads: ThreadPoolExecutor, call: Callable[..., T], *about: Any) -> T:
        if self.closing.is_set():
            why = "the server is shutting down"
            raise ApiError(503, "going_down", why, "try again", headers={"Retry-After": "1"})
        return await asyncio.get_running_loop().run_in_executor(threads, call, *about)

    def turn(self, *what: str) -> asyncio.Lock:
        """A lock for requests that change the same thing in more than one store."""
        return self._turns.setdefault(what, asyncio.Lock())

    def close(self) -> None:
        """End streams; requests that are being answered are completed."""
        self.closing.set()
        self.readers.shutdown(wait=False)
        self.first_readers.shutdown(wait=False)
        self.log_readers.shutdown(wait=False)
        self.sign_in.close()


class ApiRequest:
    """One request, read and authenticated. ``body`` is of the type its route names, or bytes."""

    __slots__ = (
        "address", "authenticated", "body", "headers", "is_secure", "path", "principal", "query", "request_id",
        "shared",
    )  # fmt: skip

    def __init__(
        self,
        shared: Shared,
        principal: Principal,
        request_id: str,
        path: dict[str, str],
        headers: dict[bytes, bytes],
        address: str = "",
    ) -> None:
        self.shared = shared
        self.principal = principal
        self.request_id = request_id
        self.path = path
        self.headers = headers
        self.address = address  # of the client, or of its network
        self.query: Any = None
        self.body: Any = b""
        self.is_secure = False  # whether the client sent it encrypted
        self.authenticated: Callable[[str], Principal] = _nobody  # checks another token, as if it were in the header

    @property
    def service(self) -> Service:
        return self.shared.service

    @property
    def user(self) -> str:
        return self.principal.user

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def may(self, verb: Verb, queue: str = "", owner: str = "") -> bool:
        return authorize(self.service.accounts, self.principal, verb, queue, owner) is Access.ALLOWED

    def may_somewhere(self, verb: Verb) -> bool:
        return may_somewhere(self.service.accounts, self.principal, verb)

    @property
    def rights(self) -> Hashable:
        """What decides which queues the user may see; users with equal rights can share a view of them."""
        user = self.service.accounts.users.get(self.user)
        return () if user is None else tuple(sorted(user.roles)), self.principal.scope

    @property
    def is_alive(self) -> bool:
        """Whether the token is still valid; streams check this repeatedly."""
        return is_alive(self.service.accounts, self.principal, self.service.now_ms())

    async def audit_read(self, what: str) -> None:
        """Record in the audit trail, if it is enabled, that the user reads this."""
        await self.shared.audit.note(self, what)

    async def audit_session(self, what: str) -> None:
        """Record that the user enters a running job."""
        await self.shared.audit.note(self, what, always=True)

    async def change(self, command: Command) -> ChangeAnswer:
        """Change the state as this user. A refusal ends the request with an error."""
        return ChangeAnswer(seq=accepted(await self.service.change(self.user, command)).seq)

    async def change_accounts(self, command: AccountCommand) -> ChangeAnswer:
        return ChangeAnswer(seq=accepted(await self.service.change_accounts(self.user, command)).seq)

    async def change_fleets(self, command: FleetCommand) -> ChangeAnswer:
        return ChangeAnswer(seq=accepted(await self.service.change_fleets(self.user, command)).seq)

    def require(self, verb: Verb, kind: str, name: str, queue: str = "", owner: str = "") -> None:
        """End the request unless the user has the right: with 404 if they may not know that the thing exists."""
        verdict = authorize(self.service.accounts, self.principal, verb, queue, owner)
        if verdict is Access.HIDDEN:
            raise not_found(kind, name)
        if verdict is Access.FORBIDDEN:
            raise forbidden(verb, queue)


def _nobody(token: str) -> Principal:
    del token
    raise ApiError(401, "no_token", "this request needs a token")


def accepted(answer: T | Refusal) -> T:
    """The result of a change; a refusal ends the request with an error."""
    if isinstance(answer, Refusal):
        raise refused(answer)
    return answer
