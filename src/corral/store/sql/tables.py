"""The tables of the projection in SQL: rows are cached while they are in use, and written back together.

Knows the columns of the tables. Knows nothing about what changes rows. The caller of the fold calls ``flush`` before
the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.cluster.topology import NodeSpec
from corral.core.gang_id import job_of
from corral.core.model import FirstFailure
from corral.store.lookup import AttemptRow, JobRow, UsageRow
from corral.store.projection import Tables
from corral.store.sql.connection import SqlConnection

Key = TypeVar("Key")
Row = TypeVar("Row")

_log = logging.getLogger(__name__)
_COLUMN_MAX = (1 << 63) - 1
#: Cached rows of a table; more only within one transaction.
AT_HAND = 10_000

Values = tuple[Any, ...]

_json = msgspec.json.Encoder()
_seats = msgspec.json.Decoder(tuple[Seat, ...])
_first = msgspec.json.Decoder(FirstFailure)
_labels = msgspec.json.Decoder(tuple[tuple[str, str], ...])
_node = msgspec.json.Decoder(NodeSpec)


class SqlTable(Struct, Generic[Key, Row], frozen=True):
    """The mapping of one type of rows to SQL. ``changing``: the columns that an event may change."""

    name: str
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    changing: tuple[str, ...]
    key_values: Callable[[Key], Values]
    values: Callable[[Row], Values]
    row: Callable[[Values], Row]

    @property
    def select(self) -> str:
        return f"SELECT {_listed(self.columns)} FROM {self.name}"

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.name} ({_listed(self.columns)})"

    @property
    def or_update(self) -> str:
        changes = ", ".join(f"{column} = excluded.{column}" for column in self.changing)
        return f"ON CONFLICT ({_listed(self.key_columns)}) DO UPDATE SET {changes}"


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def _job_values(job: JobRow) -> Values:
    values = list(msgspec.structs.astuple(job))
    values[_LABELS] = _json.encode(job.labels).decode() if job.labels else "[]"
    return tuple(values[:-1])


def _job_row(values: Values) -> JobRow:
    job = JobRow(*values)
    job.held = bool(job.held)
    job.labels = _labels.decode(values[_LABELS])
    return job


def _attempt_values(run: AttemptRow) -> Values:
    values = list(msgspec.structs.astuple(run))
    values[_SEATS] = _json.encode(run.seats).decode()
    values[_FIRST] = "" if run.first_failure is None else _json.encode(run.first_failure).decode()
    return tuple(values)


def _attempt_row(values: Values) -> AttemptRow:
    run = AttemptRow(*values)
    run.seats = _seats.decode(values[_SEATS])
    run.first_failure = _first.decode(values[_FIRST]) if values[_FIRST] else None
    return run


_JOB_COLUMNS = JobRow.__struct_fields__[:-1]  # the spec is not in this table
_LABELS = _JOB_COLUMNS.index("labels")
_SEATS = AttemptRow.__struct_fields__.index("seats")
_FIRST = AttemptRow.__struct_fields__.index("first_failure")

JOBS: SqlTable[str, JobRow] = SqlTable(
    name="jobs",
    columns=_JOB_COLUMNS,
    key_columns=("seq",),
    changing=(
        "priority", "state", "held", "started_ms", "ended_ms", "exit_code", "failure", "why", "attempts",
        "starting", "running", "stopping", "failed", "cancelled", "over",
    ),
    key_values=lambda id: (id,),
    values=_job_values,
    row=_job_row,
)  # fmt: skip
ATTEMPTS: SqlTable[tuple[str, int], AttemptRow] = SqlTable(
    name="attempts",
    columns=AttemptRow.__struct_fields__,
    key_columns=("job", "gang", "attempt"),
    changing=(
        "state", "started_ms", "ended_ms", "exit_code", "failure", "cause", "beneficiary", "lost_gpu_ms", "saved_step",
        "saved_ms", "first_failure",
    ),
    key_values=lambda key: (job_of(key[0]), *key),
    values=_attempt_values,
    row=_attempt_row,
)  # fmt: skip
USAGE: SqlTable[tuple[str, str, str], UsageRow] = SqlTable(
    name="usage",
    columns=UsageRow.__struct_fields__,
    key_columns=("queue", "user", "day"),
    changing=("gpu_ms", "lost_gpu_ms", "jobs"),
    key_values=lambda key: key,
    values=msgspec.structs.astuple,
    row=lambda values: UsageRow(*values),
)
NODES: SqlTable[str, NodeSpec] = SqlTable(
    name="nodes",
    columns=("name", "spec"),
    key_columns=("name",),
    changing=("spec",),
    key_values=lambda name: (name,),
    values=lambda spec: (spec.name, _json.encode(spec).decode()),
    row=lambda values: _node.decode(values[1]),
)
#: Everything that is folded from the records.
PROJECTED: tuple[SqlTable[Any, Any], ...] = (JOBS, ATTEMPTS, USAGE, NODES)


#: Inserts or updates rows of a table. Must pass them through ``storable``.
Put = Callable[[SqlTable[Any, Any], Sequence[Values]], None]


class _Rows(Generic[Key, Row]):
    """One table for the fold, with a cache."""

    def __init__(
        self, connection: SqlConnection, put: Put, table: SqlTable[Key, Row], found_by: tuple[str, ...] = ()
    ) -> None:
        self._connection = connection
        self._put = put
        self._table = table
        where = " AND ".join(f'"{column}" = ?' for column in found_by or table.key_columns)
        self._find = f"{table.select} WHERE {where}"
        self._at_hand: dict[Key, Row] = {}
        self._changed: dict[Key, Row] = {}

    def get(self, key: Key) -> Row | None:
        row = self._at_hand.get(key)
        if row is None:
            values = self._connection.execute(self._find, self._table.key_values(key)).fetchone()
            if values is not None:
                row = self._at_hand[key] = self._table.row(values)
        return row

    def put(self, key: Key, row: Row) -> None:
        self._at_hand[key] = self._changed[key] = row

    def flush(self) -> None:
        if self._changed:
            self._put(self._table, list(map(self._table.values, self._changed.values())))
            self._changed.clear()
        if len(self._at_hand) > AT_HAND:
            for key in list(islice(self._at_hand, len(self._at_hand) - AT_HAND // 2)):
                del self._at_hand[key]


def storable(table: SqlTable[Any, Any], values: Values) -> Values:
    """Values that fit their columns. A number that is too large is stored as the largest possible one and logged as an
    error: a check at the API should have refused it, perhaps in an earlier version."""
    for value in values:
        if type(value) is int and not -_COLUMN_MAX <= value <= _COLUMN_MAX:
            _log.error("value_not_storable: table %s: a number in %.300r is too large", table.name, values)
            return tuple(min(max(v, -_COLUMN_MAX), _COLUMN_MAX) if type(v) is int else v for v in values)
    return values


class SqlTables:
    """All tables of the projection."""

    def __init__(self, connection: SqlConnection, put: Put) -> None:
        self._jobs = _Rows(connection, put, JOBS, found_by=("id",))
        self._attempts = _Rows(connection, put, ATTEMPTS)
        self._usage = _Rows(connection, put, USAGE)
        self._nodes = _Rows(connection, put, NODES)
        self.tables = Tables(self._jobs, self._attempts, self._usage, self._nodes)

    def flush(self) -> None:
        """Write changed rows."""
        self._nodes.flush()
        self._jobs.flush()
        self._attempts.flush()
        self._usage.flush()
