"""Lookups in memory: the same answers as those of a database, by scanning everything.

This is the reference implementation; tests compare the databases with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from corral.core.events import JobSubmitted
from corral.store.journal import Record
from corral.store.lookup import (
    PAGE_MAX,
    AttemptRow,
    JobPage,
    JobQuery,
    JobRecords,
    JobRow,
    JobTable,
    RequestRow,
    UsageQuery,
    UsageRow,
    after_cursor,
    is_visible,
    is_wanted,
    lies_in,
)
from corral.store.projection import Tables, by_day, day_of, fold, job_told_of
from corral.wire import codec

Key = TypeVar("Key")
Row = TypeVar("Row")


class MemoryRows(dict[Key, Row], Generic[Key, Row]):
    """A table in memory."""

    def put(self, key: Key, row: Row) -> None:
        self[key] = row


class MemoryLookup:
    """Implements ``Lookup`` over the records passed to ``feed``."""

    def __init__(self) -> None:
        self._jobs: MemoryRows[str, JobRow] = MemoryRows()
        self._attempts: MemoryRows[tuple[str, int], AttemptRow] = MemoryRows()
        self._usage: MemoryRows[tuple[str, str, str], UsageRow] = MemoryRows()
        self._tables = Tables(self._jobs, self._attempts, self._usage, MemoryRows())
        self._submissions: dict[int, Record] = {}
        self._told: list[tuple[str, Record]] = []  # every record, with the job that it is about
        self._lock = threading.Lock()

    def feed(self, records: Iterable[Record]) -> None:
        with self._lock:
            for record in records:
                self._told.append((job_told_of(record.format, record.body), record))
                fold(self._tables, (record,))
                if codec.kind_of(record.body) == JobSubmitted.__name__:
                    self._submissions[record.seq] = record

    def jobs(self, query: JobQuery) -> JobPage:
        below, limit = after_cursor(query.cursor), min(query.limit, PAGE_MAX)
        with self._lock:
            wanted = [replace(row) for row in self._jobs.values() if row.seq < below and is_wanted(row, query)]
        wanted.sort(key=lambda row: -row.seq)
        page = tuple(wanted[:limit])
        return JobPage(page, str(page[-1].seq) if len(wanted) > limit and page else None)

    def job_table(self, query: JobQuery, order: str, descending: bool, offset: int) -> JobTable:
        with self._lock:
            wanted = [replace(row) for row in self._jobs.values() if is_wanted(row, query)]
        wanted.sort(key=lambda row: -row.seq)
        wanted.sort(key=_SORT_KEYS[order], reverse=descending)  # reversing keeps equal ones in order
        return JobTable(tuple(wanted[offset : offset + query.limit]), len(wanted))

    def job(self, id: str) -> JobRow | None:
        with self._lock:
            row = self._jobs.get(id)
            return None if row is None else with_spec(row, self._submissions.get(row.seq))

    def attempts(self, job: str) -> list[AttemptRow]:
        with self._lock:
            rows = [replace(row) for row in self._attempts.values() if row.job == job]
        return sorted(rows, key=in_order)

    def attempts_between(self, since_ms: int, until_ms: int, limit: int) -> list[AttemptRow]:
        with self._lock:
            rows = [
                replace(row)
                for row in self._attempts.values()
                if row.placed_ms <= until_ms and (row.ended_ms is None or row.ended_ms >= since_ms)
            ]
        return sorted(rows, key=lambda row: (-row.placed_ms, row.gang))[:limit]

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        with self._lock:
            rows = [replace(row) for row in self._usage.values()]
            open_runs = [(run, self._jobs[run.job]) for run in self._attempts.values() if run.ended_ms is None]
        if query.now_ms is not None:
            rows = with_open_runs(rows, open_runs, query.now_ms)
        return sorted((row for row in rows if is_usage_wanted(row, query)), key=lambda r: (r.day, r.queue, r.user))

    def records_of(self, job: str, after: int, limit: int) -> JobRecords:
        with self._lock:
            found = [record for about, record in self._told if about == job and record.seq > after][:limit]
            head = self._told[-1][1].seq if self._told else 0
        return JobRecords(found, found[-1].seq if len(found) == limit else max(after, head), head)

    def request(self, actor: str, key: str) -> RequestRow | None:
        with self._lock:
            rows = [row for row in self._jobs.values() if key and (row.actor, row.request) == (actor, key)]
        return as_request(sorted(rows, key=lambda row: row.seq))


_SORT_KEYS: dict[str, Callable[[JobRow], Any]] = {
    "submitted": lambda row: row.seq,
    "name": lambda row: row.name,
    "queue": lambda row: row.queue,
    "user": lambda row: row.user,
    "state": lambda row: row.state,
    "priority": lambda row: row.priority,
    "gpus": lambda row: row.gpu_milli,
    "started": lambda row: row.started_ms or 0,
    "ended": lambda row: row.ended_ms or 0,
}


def with_spec(row: JobRow, record: Record | None) -> JobRow:
    event = None if record is None else codec.decode(record.format, record.body)
    return replace(row, spec=event.spec if isinstance(event, JobSubmitted) else None)


def in_order(run: AttemptRow) -> tuple[int, str, int]:
    return -1 if run.index is None else run.index, run.role, run.attempt


def as_request(rows: list[JobRow]) -> RequestRow | None:
    """The submission of these jobs, which are in order. If a key was used twice, its first use counts."""
    if not rows:
        return None
    first = rows[0]
    jobs = tuple(row.id for row in rows if row.fingerprint == first.fingerprint)
    return RequestRow(first.actor, first.request, first.fingerprint, first.submitted_ms, jobs)


def is_usage_wanted(row: UsageRow, query: UsageQuery) -> bool:
    return (
        is_visible(row.queue, row.user, query.queues, query.users_own)
        and (query.queue is None or lies_in(row.queue, query.queue))
        and (query.user is None or row.user == query.user)
        and (query.since is None or row.day >= query.since)
        and (query.until is None or row.day <= query.until)
    )


def with_open_runs(rows: list[UsageRow], open_runs: list[tuple[AttemptRow, JobRow]], now_ms: int) -> list[UsageRow]:
    """Usage including attempts that have not ended."""
    table = {(row.queue, row.user, row.day): row for row in rows}
    for run, job in open_runs:
        for day_ms, gpu_ms in by_day(run, now_ms):
            key = (job.queue, job.user, day_of(day_ms))
            row = table.setdefault(key, UsageRow(*key))
            row.gpu_ms += gpu_ms
    return list(table.values())
