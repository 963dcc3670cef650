"""A request as a value, and how a method that describes one becomes a method that makes it.

One description serves both clients: ``@call`` above a function that returns a ``Call`` gives ``Client`` a method that
returns the answer and ``AsyncClient`` one to be awaited; ``@talk`` and ``@series`` do the same for what takes several
requests. Knows nothing of sockets.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import quote, urlencode

from msgspec import Struct

P = ParamSpec("P")
T = TypeVar("T")

SILENCE_S = 60.0  # of a stream: the server says something every 15 s


class Call(Struct, Generic[T], frozen=True, gc=False):
    """``answer`` is what the body is read as. ``repeatable``: doing it twice is doing it once."""

    method: str
    path: str
    answer: type[T]
    query: Mapping[str, Any] = {}
    body: Any = None
    headers: Mapping[str, str] = {}
    repeatable: bool = True

    @property
    def target(self) -> str:
        """The path with what follows the question mark; what is None, empty or False is not said."""
        said = {name: _said(value) for name, value in self.query.items() if _is_said(value)}
        return f"{self.path}?{urlencode(said, safe=',')}" if said else self.path


def _is_said(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", ())


def _said(value: Any) -> str:
    if value is True:
        return "true"
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def path(*parts: str) -> str:
    """``/v1/`` and the parts. Queues have slashes in their names, and have them here."""
    return "/v1/" + "/".join(quote(part, safe="/" if parts[0] == "queues" else "") for part in parts)


class Answer(Struct, frozen=True):
    """What came back. Of a stream: without its body, which follows."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


# ---- what a conversation may ask of whoever carries it out: a Call for its Answer, and these -----------------------


class Open(Struct, frozen=True):
    """Begin a stream; its head is the Answer. A second one replaces the first."""

    call: Call[Any]


class More(Struct, frozen=True):
    """The next bytes of the stream; none: it has ended. Nothing for so long: it is lost."""

    seconds: float = SILENCE_S


class Pause(Struct, frozen=True):
    seconds: float


class Item(Struct, Generic[T], frozen=True):
    """Something for whoever iterates."""

    value: T


Step = Call[Any] | Open | More | Pause
Talk = Generator[Step, Any, T]
Series = Generator[Step | Item[T], Any, None]


# ---- how descriptions become methods ---------------------------------------------------------------------------------


class Blocking(Protocol):
    """A client whose methods return when it is done."""

    def converse(self, series: Series[T], /) -> Generator[T, None, None]: ...


class Awaiting(Protocol):
    """A client whose methods are awaited."""

    def converse_later(self, series: Series[T], /) -> AsyncGenerator[T, None]: ...


class talk(Generic[P, T]):  # noqa: N801 - read as a decorator
    """Makes a method of a conversation that ends with one result."""

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


def call(describe: Callable[Concatenate[Any, P], Call[T]]) -> talk[P, T]:
    """Makes a method of one request."""
    from corral.client.retry import answered

    def conversation(client: Any, /, *args: P.args, **named: P.kwargs) -> Talk[T]:
        return (yield from answered(client, describe(client, *args, **named)))

    functools.update_wrapper(conversation, describe)
    return talk(conversation)


class series(Generic[P, T]):  # noqa: N801 - read as a decorator
    """Makes a method of a conversation whose results are iterated over."""

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
