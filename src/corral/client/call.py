"""A request as a value, and how a method that describes a request becomes a method that sends it.

One description serves both clients: ``@call`` above a function that returns an ``ApiCall`` gives ``Client`` a method
that returns the answer and ``AsyncClient`` a coroutine; ``@talk`` and ``@series`` do the same for methods that take
several requests. Does not know sockets.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import quote, urlencode

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")

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
    """Turns a conversation with one result into a method."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Talk[T]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> talk[P, T]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self
        if hasattr(client, "converse"):

            def bound(*args: P.args, **named: P.kwargs) -> T:
                results: Generator[T, None, None] = client.converse(_as_series(self._describe(client, *args, **named)))
                try:
                    return next(results)
                finally:
                    results.close()

            return functools.update_wrapper(bound, self._describe)

        async def bound_later(*args: P.args, **named: P.kwargs) -> T:
            results: AsyncGenerator[T, None] = client.converse_later(_as_series(self._describe(client, *args, **named)))
            try:
                return await anext(results)
            finally:
                await results.aclose()

        return functools.update_wrapper(bound_later, self._describe)


def call(describe: Callable[Concatenate[Any, P], ApiCall[T]]) -> talk[P, T]:
    """Turns one request into a method."""
    from corral.client.retry import answered

    def conversation(client: Any, /, *args: P.args, **named: P.kwargs) -> Talk[T]:
        return (yield from answered(client, describe(client, *args, **named)))

    functools.update_wrapper(conversation, describe)
    return talk(conversation)


class series(Generic[P, T]):  # noqa: N801 - read as a decorator
    """Turns a conversation with many results into a method to iterate over."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Series[T]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> series[P, T]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self
        begin = client.converse if hasattr(client, "converse") else client.converse_later

        def bound(*args: P.args, **named: P.kwargs) -> Any:
            return begin(self._describe(client, *args, **named))

        return functools.update_wrapper(bound, self._describe)


def _as_series(conversation: Talk[T]) -> Series[T]:
    yield Item((yield from conversation))
