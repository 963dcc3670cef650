"""Errors of the driver become errors of the journal, with the kind of problem and what to do.

Knows error codes of PostgreSQL. Some problems are temporary (``JournalAway``: wait), others need an operator
(``JournalUnusable``). All others are bugs of Corral and are not converted.
"""

from __future__ import annotations

import psycopg
from psycopg import errors

from corral.store.journal import JournalAway, JournalUnusable
from corral.wire.address import shown

_KINDS: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (
    (
        (errors.ReadOnlySqlTransaction,),
        "read_only",
        "it is read-only. Use the primary, or end its read-only mode (default_transaction_read_only)",
    ),
    ((errors.DiskFull,), "full", "its disk is full. Free space there"),
    ((errors.LockNotAvailable,), "locked", "another session has locked its tables. Find it in pg_locks and end it"),
    ((errors.QueryCanceled,), "slow", "it is too slow. See pg_stat_activity for what it is busy with"),
    ((errors.TooManyConnections,), "crowded", "it has too many connections. Raise max_connections, or close some"),
)
_NEEDS_PERSON = (
    errors.InsufficientPrivilege,
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
)
#: Classes of error codes: connection, transaction state, resources, operator intervention, operating system.
_OF_THE_DATABASE = ("08", "25", "40", "53", "57", "58")
#: Fragments of the messages of a server that refuses connections temporarily.
_PASSES = ("starting up", "shutting down", "in recovery", "not yet accepting", "connection slots", "too many")


class DatabaseTimeout(psycopg.OperationalError):
    """The database did not answer in time; the connection is closed. Whether the statement was executed is unknown."""


def trouble(address: str, wrong: BaseException) -> JournalUnusable | None:
    """The error for a problem of the database; None if the database is not the cause."""
    if isinstance(wrong, JournalUnusable):
        return wrong
    if not isinstance(wrong, psycopg.Error):
        return None
    said = _first_line(wrong)
    for types, kind, todo in _KINDS:
        if isinstance(wrong, types):
            return JournalAway(f"the database {shown(address)} cannot be used: {todo} ({said}).", kind)
    if isinstance(wrong, _NEEDS_PERSON) or _turns_us_away(wrong, said):
        return JournalUnusable(
            f"the database {shown(address)} cannot be used: {said}. Check the address and the rights of this user."
        )
    if isinstance(wrong, psycopg.OperationalError) or (wrong.sqlstate or "")[:2] in _OF_THE_DATABASE:
        kind = "silent" if isinstance(wrong, DatabaseTimeout | errors.ConnectionTimeout) else "away"
        return JournalAway(
            f"the database {shown(address)} cannot be used: {said}. Check that it runs, the address, and the rights of "
            "this user.",
            kind,
        )
    return None


def _turns_us_away(wrong: psycopg.Error, said: str) -> bool:
    """Whether the server refuses us for good. A refusal during connection has no code, only a message."""
    if wrong.sqlstate is not None or "FATAL:" not in said:
        return False
    return not any(words in said for words in _PASSES)


def _first_line(wrong: psycopg.Error) -> str:
    lines = str(wrong).strip().splitlines()
    return lines[0].rstrip(".") if lines else "no answer"
