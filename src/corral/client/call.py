"""A request as a value, and how a method that describes a request becomes a method that sends it.

One description serves both clients: ``@call`` above a function that returns an ``ApiCall`` gives ``Client`` a method
that returns the answer and ``AsyncClient`` a coroutine; ``@talk`` and ``@series`` do the same for methods that take
several requests. Does not know sockets.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload
from urllib.parse import quote, urlencode

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

SILENCE_S = 60.0  # for streams: the server sends something every 15 s


class ApiCall(Struct, Generic[T], frozen=True, gc=False):
    """``answer``: type of the response body. ``repeatable``: the request is idempotent."""

    method: str
    path: str
    answer: type[T]
    query: Mapping[str, Any] = {}
    body: Any = None
    headers: Mapping[str, str] = {}
    repeatable: bool = True

    @property
    def target(self) -> str:
        """The path with its query; parameters that are None, empty or False are left out."""
        parameters = {name: _parameter_text(value) for name, value in self.query.items() if _is_given(value)}
        return f"{self.path}?{urlencode(parameters, safe=',')}" if parameters else self.path


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", ())


def _parameter_text(value: Any) -> str:
    if value is True:
        return "true"
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


#: A job as callers name it: 17 or "17".
JobId = int | str


def job_id(job: JobId) -> str:
    """The id as text. Raises ``TypeError`` for what cannot be an id, before anything is sent."""
    if type(job) is int and job >= 0:
        return str(job)
    if isinstance(job, str) and job:
        return job
    raise TypeError(f"the id of a job is a number or text such as 17, not {job!r}")


def path(*parts: str) -> str:
    """``/v1/`` and the parts. Slashes in names of queues are kept."""
    return "/v1/" + "/".join(quote(part, safe="/" if parts[0] == "queues" else "") for part in parts)


class RawAnswer(Struct, frozen=True):
    """A response. For a stream: without the body, which is read later."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


# ---- what a conversation may yield to its client: an ApiCall, for its answer, and these ------------------------------


class Open(Struct, frozen=True):
    """Open a stream; the result is its head. A second stream replaces the first."""

    call: ApiCall[Any]


class More(Struct, frozen=True):
    """Read the next bytes of the stream; empty: it has ended. No bytes within the timeout: the connection is lost."""

    seconds: float = SILENCE_S


class Pause(Struct, frozen=True):
    seconds: float


class Item(Struct, Generic[T], frozen=True):
    """An item for the caller that iterates."""

    value: T


Step = ApiCall[Any] | Open | More | Pause
Talk = Generator[Step, Any, T]
Series = Generator[Step | Item[T], Any, None]


# ---- how descriptions become methods ---------------------------------------------------------------------------------


class Blocking(Protocol):
    """A client with blocking methods."""

    def converse(self, series: Series[T], /) -> Generator[T, None, None]: ...


class Awaiting(Protocol):
    """A client with coroutine methods."""

    def converse_later(self, series: Series[T], /) -> AsyncGenerator[T, None]: ...


class talk(Generic[P, T]):  # noqa: N801 - read as a decorator
    """Turns a conversation with one result into a method. ``gives``: the type of the result, if the description has
    another one."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Talk[T]], gives: type[T] | None = None) -> None:
        self._describe = describe
        self._gives = gives
        self._methods: dict[bool, Callable[..., Any]] = {}
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        is_blocking = hasattr(owner, "converse")
        if is_blocking not in self._methods:
            made = self._blocking() if is_blocking else self._awaiting()
            self._methods[is_blocking] = _as_method(made, self._describe, "{0}", self._gives)
        return _bound(self._methods[is_blocking], client)

    def _blocking(self) -> Callable[..., T]:
        def method(client: Any, /, *args: P.args, **named: P.kwargs) -> T:
            results: Generator[T, None, None] = client.converse(_as_series(self._describe(client, *args, **named)))
            try:
                return next(results)
            finally:
                results.close()

        return method

    def _awaiting(self) -> Callable[..., Awaitable[T]]:
        async def method(client: Any, /, *args: P.args, **named: P.kwargs) -> T:
            results: AsyncGenerator[T, None] = client.converse_later(_as_series(self._describe(client, *args, **named)))
            try:
                return await anext(results)
            finally:
                await results.aclose()

        return method


def call(describe: Callable[Concatenate[Any, P], ApiCall[T]]) -> talk[P, T]:
    """Turns one request into a method."""
    from corral.client.retry import answered

    def conversation(client: Any, /, *args: P.args, **named: P.kwargs) -> Talk[T]:
        return (yield from answered(client, describe(client, *args, **named)))

    functools.update_wrapper(conversation, describe)
    return talk(conversation)


class either(Generic[P, T, A]):  # noqa: N801 - as `talk`
    """A method with another type of result for each client."""

    def __init__(self, blocking: talk[P, T], awaiting: talk[P, A]) -> None:
        self._blocking, self._awaiting = blocking, awaiting
        self.__doc__ = blocking.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, A]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        method: talk[P, Any] = self._blocking if hasattr(owner, "converse") else self._awaiting
        return method.__get__(client, owner)


class series(Generic[P, T]):  # noqa: N801 - read as a decorator
    """Turns a conversation with many results into a method to iterate over."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Series[T]]) -> None:
        self._describe = describe
        self._methods: dict[bool, Callable[..., Any]] = {}
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        is_blocking = hasattr(owner, "converse")
        if is_blocking not in self._methods:
            result = "Generator[{0}, None, None]" if is_blocking else "AsyncGenerator[{0}, None]"
            self._methods[is_blocking] = _as_method(self._iterating(is_blocking), self._describe, result)
        return _bound(self._methods[is_blocking], client)

    def _iterating(self, is_blocking: bool) -> Callable[..., Any]:
        def method(client: Any, /, *args: P.args, **named: P.kwargs) -> Any:
            conversation = self._describe(client, *args, **named)
            return Items(client.converse(conversation)) if is_blocking else client.converse_later(conversation)

        return method


class Items(Generator[T, None, None]):
    """The items of a series, one by one. A notebook shows the first ones as a table, and they are still there."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items
        self._seen: deque[T] = deque()

    def send(self, value: None) -> T:
        return self._seen.popleft() if self._seen else self._items.send(value)

    def throw(self, kind: Any, value: Any = None, _trace: Any = None) -> T:
        self._seen.clear()
        return self._items.throw(kind if value is None else value)

    def _repr_html_(self) -> str:
        from corral.wire.api.html_table import ROWS_MAX, rows_html

        self._seen.extend(islice(self._items, max(0, ROWS_MAX - len(self._seen))))
        more = "there may be more" if len(self._seen) >= ROWS_MAX else ""
        return rows_html([each for each in self._seen if isinstance(each, Struct)], more)


def _bound(method: Callable[..., Any], client: Any) -> Any:
    return method if client is None else MethodType(method, client)


def _as_method(
    made: Callable[..., Any], describe: Callable[..., Any], result: str, gives: type | None = None
) -> Callable[..., Any]:
    """The method with the name, the help and the parameters of its description. What it returns is the type in the
    brackets of ``ApiCall[...]``, ``Talk[...]`` or ``Series[...]``. ``inspect`` is too slow to import for this."""
    described = cast(FunctionType, getattr(describe, "__wrapped__", describe))
    names = _ITERATORS if gives is None else {gives.__name__: gives}
    shown = FunctionType(described.__code__, {**described.__globals__, **names}, described.__name__)
    shown.__defaults__, shown.__kwdefaults__ = described.__defaults__, described.__kwdefaults__
    returns = described.__annotations__["return"].partition("[")[2].removesuffix("]")
    returns = returns if gives is None else gives.__name__
    shown.__annotations__ = described.__annotations__ | {"return": result.format(returns)}
    functools.update_wrapper(made, described)
    made.__annotations__ = shown.__annotations__
    made.__wrapped__ = shown  # type: ignore[attr-defined]  # this is what inspect.signature and help read
    return made


_ITERATORS = {"Generator": Generator, "AsyncGenerator": AsyncGenerator}


def _as_series(conversation: Talk[T]) -> Series[T]:
    yield Item((yield from conversation))
