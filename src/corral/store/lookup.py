"""Lookups of jobs, attempts, usage and submissions: rows, queries and a Protocol.

The rows are a fold of the journal (``projection``); this module defines only their types and the queries. Rights are
not decided here: a query contains the queues that the user may see.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.model import FirstFailure, JobSpec
from corral.store.journal import Record

#: States of a job that has not ended, and of one that has.
LIVE = ("waiting", "starting", "running", "stopping")
OVER = ("succeeded", "failed", "cancelled")

PAGE = 100
PAGE_MAX = 10_000


class JobRow(Struct):
    """A job, kept for ever. ``seq`` is the record of its submission: newer is greater.

    ``started_ms``: when the first of its gangs first ran. ``failure``, ``why`` and ``exit_code`` are those of the first
    gang that did not succeed; ``exit_code`` is 0 if all succeeded, and None while it is unknown. ``gpu_milli`` and
    ``tasks``: requested by all gangs of all elements together. ``request`` is the idempotency key of its submission by
    ``actor``. ``spec`` is set only when a single job is looked up.
    """

    seq: int
    id: str
    name: str
    queue: str
    user: str
    actor: str
    request: str
    fingerprint: str
    priority: int
    state: str
    held: bool
    submitted_ms: int
    started_ms: int | None
    ended_ms: int | None
    exit_code: int | None
    failure: str | None
    why: str
    gpu_milli: int
    tasks: int
    attempts: int
    array_size: int
    labels: tuple[tuple[str, str], ...]
    gangs: int
    starting: int = 0  # number of gangs in this state
    running: int = 0  # includes broken ones
    stopping: int = 0
    failed: int = 0
    cancelled: int = 0
    over: int = 0  # includes those that failed or were cancelled
    spec: JobSpec | None = None

    @property
    def gpus(self) -> int:
        """Whole GPUs; a part of one counts as one."""
        return -(-self.gpu_milli // 1000)

    @property
    def is_over(self) -> bool:
        return self.over == self.gangs


class AttemptRow(Struct):
    """One attempt of a gang. ``state``: starting, running, broken, stopping or ended. The last ``spares`` seats
    are idle."""

    job: str
    gang: str
    attempt: int
    role: str
    index: int | None
    state: str
    placed_ms: int
    started_ms: int | None
    ended_ms: int | None
    gpu_milli: int
    seats: tuple[Seat, ...]
    spares: int
    exit_code: int | None = None
    failure: str | None = None
    cause: str | None = None
    beneficiary: str = ""
    lost_gpu_ms: int = 0
    saved_step: int | None = None
    saved_ms: int | None = None
    first_failure: FirstFailure | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Each node once, in rank order."""
        return tuple(dict.fromkeys(seat.node for seat in self.seats))


class UsageRow(Struct):
    """GPU time of a user in a queue on a day (UTC, YYYY-MM-DD), the part of it that was lost, and jobs submitted.

    Lost time is counted on the day on which it was lost.
    """

    queue: str
    user: str
    day: str
    gpu_ms: int = 0
    lost_gpu_ms: int = 0
    jobs: int = 0


class RequestRow(Struct, frozen=True):
    """A submission with an idempotency key: a digest of what was submitted (``fingerprint``), and its jobs."""

    actor: str
    key: str
    fingerprint: str
    at_ms: int
    jobs: tuple[str, ...]


class JobQuery(Struct, frozen=True, kw_only=True):
    """A query for jobs, newest first. A job must meet all conditions.

    ``queues`` are the queues that the user may see, each with all below it (None: all queues); jobs of the user
    ``users_own`` are visible in every queue. ``queue`` means it and all below it; ``name`` may end in ``*``; a job must
    have all of the ``labels``, and be submitted from ``since_ms`` up to but not including ``until_ms``. ``search``: a
    text in its name, queue or user, upper and lower case alike, or the start of its number. ``ids``: one of these jobs.
    """

    queues: tuple[str, ...] | None = None
    users_own: str | None = None
    queue: str | None = None
    user: str | None = None
    states: tuple[str, ...] = ()
    name: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    search: str | None = None
    ids: tuple[str, ...] | None = None
    limit: int = PAGE
    cursor: str | None = None


#: What a table of jobs can be sorted by: each is a field of the row, or an expression over columns of the same meaning.
ORDERS = {
    "submitted": "seq",
    "name": "name",
    "queue": "queue",
    "user": '"user"',
    "state": "state",
    "priority": "priority",
    "gpus": "gpu_milli",
    "started": "coalesce(started_ms, 0)",
    "ended": "coalesce(ended_ms, 0)",
}


class JobTable(Struct, frozen=True):
    """Some rows of all jobs that meet a query, from an offset on in some order; ``total``: how many jobs meet it."""

    jobs: tuple[JobRow, ...]
    total: int


class JobPage(Struct, frozen=True):
    """A page. ``cursor``: for the next page; None if there is none."""

    jobs: tuple[JobRow, ...]
    cursor: str | None = None


class UsageQuery(Struct, frozen=True, kw_only=True):
    """A query for usage. Both days are included. ``now_ms``: include running attempts up to this time."""

    queues: tuple[str, ...] | None = None
    users_own: str | None = None
    queue: str | None = None
    user: str | None = None
    since: str | None = None
    until: str | None = None
    now_ms: int | None = None


class JobRecords(Struct, frozen=True):
    """Records about a job, in order; complete up to the record ``upto``. ``head``: the last record of the journal."""

    records: list[Record]
    upto: int
    head: int


class BadCursor(ValueError):
    """A cursor that no page gave."""


class Lookup(Protocol):
    """Lookups of durable data, from any thread."""

    def jobs(self, query: JobQuery) -> JobPage: ...

    def job_table(self, query: JobQuery, order: str, descending: bool, offset: int) -> JobTable:
        """``order``: one of ``ORDERS``; equal ones are newest first. Looks at every job, so it is for what people
        read."""

    def job(self, id: str) -> JobRow | None:
        """One job, with its spec."""

    def attempts(self, job: str) -> list[AttemptRow]:
        """All attempts of all its gangs, by element, gang and number."""

    def attempts_between(self, since_ms: int, until_ms: int, limit: int) -> list[AttemptRow]:
        """Attempts of all jobs that had seats between these times, the latest first. Looks at every attempt."""

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """By day, queue and user."""

    def request(self, actor: str, key: str) -> RequestRow | None: ...

    def records_of(self, job: str, after: int, limit: int) -> JobRecords:
        """Records about a job above a number that are not archived. At most ``limit``, and possibly fewer than there
        are: continue from ``upto``."""


def request_mark(key: str, fingerprint: str) -> str:
    """The value of ``Entry.request``: the idempotency key, and a digest of what was sent (without spaces)."""
    assert " " not in fingerprint
    return f"{fingerprint} {key}"


def read_request_mark(mark: str) -> tuple[str, str]:
    """Key and fingerprint; both empty for an entry without a key."""
    fingerprint, _, key = mark.partition(" ")
    return key, fingerprint


def after_cursor(cursor: str | None) -> int:
    """The number below which the next page starts."""
    if cursor is None:
        return 1 << 62
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
        raise BadCursor(f"{cursor!r} is not a cursor. Use the cursor of the previous page.")
    return int(cursor)


def lies_in(queue: str, root: str) -> bool:
    """Whether a queue is ``root`` or below it; every queue is below the empty name."""
    return not root or queue == root or queue.startswith(root + "/")


def is_visible(queue: str, user: str, queues: tuple[str, ...] | None, users_own: str | None) -> bool:
    return queues is None or user == users_own or any(lies_in(queue, root) for root in queues)


def is_wanted(row: JobRow, query: JobQuery) -> bool:
    """Whether a job meets all conditions of a query, paging aside."""
    return (
        is_visible(row.queue, row.user, query.queues, query.users_own)
        and (query.queue is None or lies_in(row.queue, query.queue))
        and (query.user is None or row.user == query.user)
        and (not query.states or row.state in query.states)
        and (query.name is None or _is_named(row.name, query.name))
        and all(label in row.labels for label in query.labels)
        and (query.since_ms is None or row.submitted_ms >= query.since_ms)
        and (query.until_ms is None or row.submitted_ms < query.until_ms)
        and (query.search is None or _is_found(row, query.search.lower()))
        and (query.ids is None or row.id in query.ids)
    )


def _is_found(row: JobRow, text: str) -> bool:
    return row.id.startswith(text) or any(text in each.lower() for each in (row.name, row.queue, row.user))


def _is_named(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted
