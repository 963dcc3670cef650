"""The database connection that shared code needs: statements with ``?`` as placeholder, and rows.

Knows no database. Other differences between databases are in ``Dialect``, as SQL.
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


class SqlConnection(Protocol):
    """A connection without implicit transactions."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor: ...


class Readers(Protocol):
    """A pool of connections for reading."""

    def connection(self) -> AbstractContextManager[SqlConnection]: ...


class Dialect(Struct, frozen=True):
    """``begin``: starts a transaction with a snapshot. ``sieve``: put before a column to keep its index from being
    used. ``has_label``: condition that a job has a label (key and value). ``labelled``: the same, by the index.
    ``is_far``: every statement is a network round trip, so statements are combined."""

    begin: str
    sieve: str
    has_label: str
    labelled: str
    is_far: bool = False
