"""What is wrong with the database, from what the driver raises: which kind, in plain words, and what to do.

Knows error codes of PostgreSQL. Some troubles end by themselves (``JournalAway``: worth waiting for), others need a
person (``JournalUnusable``). What is neither is a fault of Corral, and passes unchanged.
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
        "it is read-only. Name the primary, or end its read-only mode (default_transaction_read_only)",
    ),
    ((errors.DiskFull,), "full", "its disk is full. Make room there"),
    ((errors.LockNotAvailable,), "locked", "another session keeps its tables locked. See pg_locks, and end that one"),
    ((errors.QueryCanceled,), "slow", "it takes too long. See what it is busy with (pg_stat_activity)"),
    ((errors.TooManyConnections,), "crowded", "it has too many connections. Raise max_connections, or end some"),
)
_NEEDS_PERSON = (
    errors.InsufficientPrivilege,
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
)
#: Classes of codes: connections, states of transactions, resources, interventions of an operator, the system below.
_OF_THE_DATABASE = ("08", "25", "40", "53", "57", "58")
#: A server that refuses to let anybody in says so in these words; all of them pass.
_PASSES = ("starting up", "shutting down", "in recovery", "not yet accepting", "connection slots", "too many")


class Silent(psycopg.OperationalError):
    """Nothing was heard for too long; the connection is given up. Whether what was asked for happened is unknown."""


def trouble(address: str, wrong: BaseException) -> JournalUnusable | None:
    """What is wrong with the database, or None where it is not the database that is to blame."""
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
            f"the database {shown(address)} cannot be used: {said}. See that the address is right, and that this user "
            "may use it."
        )
    if isinstance(wrong, psycopg.OperationalError) or (wrong.sqlstate or "")[:2] in _OF_THE_DATABASE:
        kind = "silent" if isinstance(wrong, Silent | errors.ConnectionTimeout) else "away"
        return JournalAway(
            f"the database {shown(address)} cannot be used: {said}. See that it runs, that the address is right, and "
            "that this user may use it.",
            kind,
        )
    return None


def _turns_us_away(wrong: psycopg.Error, said: str) -> bool:
    """A refusal while connecting comes without a code: only its words tell."""
    if wrong.sqlstate is not None or "FATAL:" not in said:
        return False
    return not any(words in said for words in _PASSES)


def _first_line(wrong: psycopg.Error) -> str:
    lines = str(wrong).strip().splitlines()
    return lines[0].rstrip(".") if lines else "no answer"
