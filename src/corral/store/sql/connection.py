"""What shared code asks of a connection to a database: statements with ``?`` where values go, and rows.

Knows no database. What differs between dialects beyond that is in ``Dialect``, as SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct


class Cursor(Protocol):
    """The rows of one statement."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection in which nothing begins or commits by itself."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor: ...


class Readers(Protocol):
    """Connections for reading, one to whoever reads at the moment."""

    def connection(self) -> AbstractContextManager[Connection]: ...


class Dialect(Struct, frozen=True):
    """``begin``: a transaction that sees one moment. ``sieve``: in front of a column that no index is to be used for.
    ``has_label``: that a job has a label, its key and its value to be filled in. ``labelled``: the same, by the index.
    ``is_far``: every statement is a trip, so that what can be asked in one is."""

    begin: str
    sieve: str
    has_label: str
    labelled: str
    is_far: bool = False
