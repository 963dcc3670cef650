"""Lookups in SQL. A list of jobs is merged from streams, each of which is read from an index in the right order.

So the cost of a page depends on its size, not on the number of jobs: a query for the waiting jobs of two queues reads
the newest few of each, and not the million that ended. Conditions without an index (names with ``*``, times, a second
label) filter the streams.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import product
from typing import Any

from corral.core.events import JobSubmitted
from corral.store.lookup import (
    LIVE,
    ORDERS,
    OVER,
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
    lies_in,
)
from corral.store.memory_lookup import as_request, in_order, is_usage_wanted, with_open_runs
from corral.store.sql.by_job import records_of
from corral.store.sql.connection import Dialect, Readers, SqlConnection
from corral.store.sql.tables import ATTEMPTS, JOBS, USAGE
from corral.wire import codec

#: With more queues than this there is no stream for each: a user who sees this many sees nearly all.
QUEUES_AT_ONCE = 32

#: A condition, or a statement, and its values.
Condition = tuple[str, tuple[Any, ...]]


class SqlLookup:
    """Implements ``Lookup`` on the projections of a journal."""

    def __init__(self, readers: Readers, dialect: Dialect) -> None:
        self._readers, self._dialect = readers, dialect

    def jobs(self, query: JobQuery) -> JobPage:
        limit = max(0, min(query.limit, PAGE_MAX))
        with self._readers.connection() as connection:
            connection.execute(self._dialect.begin)  # all streams see the same snapshot
            try:
                rows = _Question(connection, self._dialect, query).page(after_cursor(query.cursor), limit + 1)
            finally:
                connection.execute("COMMIT")
        page = tuple(rows[:limit])
        return JobPage(page, str(page[-1].seq) if len(rows) > limit and page else None)

    def job_table(self, query: JobQuery, order: str, descending: bool, offset: int) -> JobTable:
        with self._readers.connection() as connection:
            connection.execute(self._dialect.begin)
            try:
                return _Question(connection, self._dialect, query).table(ORDERS[order], descending, offset)
            finally:
                connection.execute("COMMIT")

    def job(self, id: str) -> JobRow | None:
        with self._readers.connection() as connection:
            values = connection.execute(f"{JOBS.select} WHERE id = ?", (id,)).fetchone()
            if values is None:
                return None
            job = JOBS.row(values)
            kept = connection.execute("SELECT format, body FROM records WHERE seq = ?", (job.seq,)).fetchone()
            if kept is None:  # archived
                kept = connection.execute("SELECT format, body FROM submissions WHERE seq = ?", (job.seq,)).fetchone()
                kept = kept and (kept[0], zlib.decompress(kept[1]))
        event = None if kept is None else codec.decode(*kept)
        job.spec = event.spec if isinstance(event, JobSubmitted) else None
        return job

    def attempts(self, job: str) -> list[AttemptRow]:
        with self._readers.connection() as connection:
            rows = connection.execute(f"{ATTEMPTS.select} WHERE job = ?", (job,)).fetchall()
        return sorted(map(ATTEMPTS.row, rows), key=in_order)

    def attempts_between(self, since_ms: int, until_ms: int, limit: int) -> list[AttemptRow]:
        question = (
            f"{ATTEMPTS.select} WHERE placed_ms <= ? AND (ended_ms IS NULL OR ended_ms >= ?)"
            " ORDER BY placed_ms DESC, gang LIMIT ?"
        )
        with self._readers.connection() as connection:
            return list(map(ATTEMPTS.row, connection.execute(question, (until_ms, since_ms, limit)).fetchall()))

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        with self._readers.connection() as connection:
            connection.execute(self._dialect.begin)
            try:
                rows = _usage(connection, query)
            finally:
                connection.execute("COMMIT")
        return sorted((row for row in rows if is_usage_wanted(row, query)), key=lambda r: (r.day, r.queue, r.user))

    def records_of(self, job: str, after: int, limit: int) -> JobRecords:
        with self._readers.connection() as connection:
            connection.execute(self._dialect.begin)
            try:
                return records_of(connection, job, after, limit)
            finally:
                connection.execute("COMMIT")

    def request(self, actor: str, key: str) -> RequestRow | None:
        if not key:
            return None
        question = f"{JOBS.select} WHERE request = ? AND request <> '' AND actor = ? ORDER BY seq"
        with self._readers.connection() as connection:
            return as_request(list(map(JOBS.row, connection.execute(question, (key, actor)).fetchall())))


# ---- jobs ----------------------------------------------------------------------------------------------------------


class _Question:
    """One query for jobs, on one connection."""

    def __init__(self, connection: SqlConnection, dialect: Dialect, query: JobQuery) -> None:
        self._connection = connection
        self._dialect = dialect
        self._query = query

    def page(self, below: int, count: int) -> list[JobRow]:
        sieve = [("seq < ?", (below,)), *self._sieve()]
        streams = [_stream([*stream, *sieve], count) for stream in self._streams()]
        rows: list[JobRow] = []
        for values in self._merged(streams, count):
            if not rows or rows[-1].seq != values[0]:  # a job may be in two streams
                rows.append(JOBS.row(values))
            if len(rows) == count:
                break
        return rows

    def table(self, column: str, descending: bool, offset: int) -> JobTable:
        conditions = [_ANY, *self._seen(), *self._sieve()]
        where = " AND ".join(condition for condition, _ in conditions)
        values = [value for _, given in conditions for value in given]
        (total,) = self._connection.execute(f"SELECT count(*) FROM jobs WHERE {where}", values).fetchone()
        order = f"{column} {'DESC' if descending else 'ASC'}, seq DESC"
        question = f"{JOBS.select} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        rows = self._connection.execute(question, (*values, min(self._query.limit, PAGE_MAX), offset)).fetchall()
        return JobTable(tuple(map(JOBS.row, rows)), total)

    def _merged(self, streams: list[Condition], count: int) -> Iterable[tuple[Any, ...]]:
        """Merge statements, each of which gives jobs in the right order, into one sequence in that order."""
        execute = self._connection.execute
        if not self._dialect.is_far:
            return merge(*(execute(*stream) for stream in streams), key=lambda values: -values[0])
        if not streams:
            return ()
        union = " UNION ALL ".join(f"({statement})" for statement, _ in streams)
        values = [value for _, given in streams for value in given]
        question = f"SELECT * FROM ({union}) AS found ORDER BY seq DESC LIMIT ?"
        return execute(question, (*values, 2 * count))  # no job is in three streams

    def _streams(self) -> Iterator[list[Condition]]:
        """Sets of jobs that together contain the result, each read from an index in order."""
        query = self._query
        if query.name is not None and not query.name.endswith("*") and query.name:
            yield [("name = ? AND name <> ''", (query.name,)), *self._seen()]
            return
        if query.labels:
            yield [(self._dialect.labelled, query.labels[0]), *self._seen()]
            return
        states = tuple(dict.fromkeys(query.states)) or LIVE + OVER
        if query.user is not None:
            for state in states:
                yield [('"user" = ? AND state = ?', (query.user, state)), *self._seen()]
            return
        queues = self._wanted_queues()
        if queues is not None and len(queues) <= QUEUES_AT_ONCE:
            for queue, state in product(queues, states):
                yield [("queue = ? AND state = ?", (queue, state))]
            if query.queues is not None and query.users_own is not None:
                below = self._in_queues(self._queues_below((query.queue,))) if query.queue else _ANY
                for state in states:
                    yield [('"user" = ? AND state = ?', (query.users_own, state)), below]
        elif query.states:
            for state in states:
                yield [("state = ?", (state,)), *self._seen()]
        else:
            yield [_ANY, *self._seen()]

    def _seen(self) -> list[Condition]:
        """Conditions that the user may see the job, and that it is in the requested queue, as filters."""
        conditions, query = [], self._query
        if query.queue:
            conditions.append(self._in_queues(self._queues_below((query.queue,))))
        if query.queues is not None:
            condition, values = self._in_queues(self._queues_below(query.queues))
            conditions.append((f'({condition} OR {self._dialect.sieve}"user" = ?)', (*values, query.users_own)))
        return conditions

    def _in_queues(self, queues: list[str]) -> Condition:
        return self._one_of("queue", queues)

    def _one_of(self, column: str, values: Sequence[str]) -> Condition:
        if not values:
            return _NONE
        return f"{self._dialect.sieve}{column} IN ({', '.join('?' * len(values))})", tuple(values)

    def _wanted_queues(self) -> list[str] | None:
        """The queues of the result, without those seen only by ownership of a job; None: any."""
        query = self._query
        if query.queues is None and not query.queue:
            return None
        queues = self._queues_below(("",) if query.queues is None else query.queues)
        return [queue for queue in queues if not query.queue or lies_in(queue, query.queue)]

    def _queues_below(self, roots: tuple[str, ...]) -> list[str]:
        """Every queue that ever had a job and is below one of these, found by a skip scan of the index."""
        names = self._connection.execute(
            """
            WITH RECURSIVE hop (queue) AS (
                SELECT min(queue) FROM jobs
                UNION ALL
                SELECT (SELECT min(queue) FROM jobs WHERE jobs.queue > hop.queue) FROM hop WHERE hop.queue IS NOT NULL
            )
            SELECT queue FROM hop WHERE queue IS NOT NULL
            """
        )
        return [queue for (queue,) in names.fetchall() if any(lies_in(queue, root) for root in roots)]

    def _sieve(self) -> Iterator[Condition]:
        query, aside = self._query, self._dialect.sieve
        if query.states:
            yield self._one_of("state", query.states)
        if query.user is not None:
            yield f'{aside}"user" = ?', (query.user,)
        if query.name is not None:
            if query.name.endswith("*"):
                yield "substr(name, 1, ?) = ?", (len(query.name) - 1, query.name[:-1])
            else:
                yield f"{aside}name = ?", (query.name,)
        if query.since_ms is not None:
            yield "submitted_ms >= ?", (query.since_ms,)
        if query.until_ms is not None:
            yield "submitted_ms < ?", (query.until_ms,)
        for key, value in query.labels:
            yield self._dialect.has_label, (key, value)
        if query.ids is not None:
            yield _NONE if not query.ids else (f"id IN ({', '.join('?' * len(query.ids))})", query.ids)
        if query.search is not None:
            text = query.search.lower()
            part = f"%{_literal(text)}%"
            found = " OR ".join(f"lower({column}) LIKE ? ESCAPE '!'" for column in ("name", "queue", '"user"'))
            yield f"(id LIKE ? ESCAPE '!' OR {found})", (f"{_literal(text)}%", part, part, part)


def _literal(text: str) -> str:
    """A text in a pattern of LIKE that stands for itself."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _stream(conditions: list[Condition], count: int) -> Condition:
    where = " AND ".join(condition for condition, _ in conditions)
    values = [value for _, given in conditions for value in given]
    return f"{JOBS.select} WHERE {where} ORDER BY seq DESC LIMIT ?", (*values, count)


_ANY: Condition = ("1 = 1", ())
_NONE: Condition = ("1 = 0", ())


# ---- usage ---------------------------------------------------------------------------------------------------------


def _usage(connection: SqlConnection, query: UsageQuery) -> list[UsageRow]:
    since, until = query.since or "", query.until or "9999-12-31"
    days = connection.execute(f"{USAGE.select} WHERE day BETWEEN ? AND ?", (since, until))
    rows = list(map(USAGE.row, days.fetchall()))
    if query.now_ms is None:
        return rows
    runs = list(map(ATTEMPTS.row, connection.execute(f"{ATTEMPTS.select} WHERE ended_ms IS NULL").fetchall()))
    jobs = {run.job: JOBS.row(connection.execute(f"{JOBS.select} WHERE id = ?", (run.job,)).fetchone()) for run in runs}
    return with_open_runs(rows, [(run, jobs[run.job]) for run in runs], query.now_ms)
