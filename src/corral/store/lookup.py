"""What can be looked up of past and present: jobs, their runs, usage, submissions. Rows, questions and a Protocol.

The rows are a fold of the journal (``projection``); here is only what they look like and how they are asked for. Says
nothing of who may ask: the rights of whoever asks come in with the question, as the queues they may see.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.model import JobSpec
from corral.store.journal import Record

#: States of a job that is not over, and of one that is.
LIVE = ("waiting", "starting", "running", "stopping")
OVER = ("succeeded", "failed", "cancelled")

PAGE = 100
PAGE_MAX = 10_000


class JobRow(Struct):
    """A job, from its submission on and for ever. ``seq`` is the record it was submitted by: newer is greater.

    ``started_ms``: when the first of its gangs first ran. ``failure``, ``why`` and ``exit_code`` are those of the first
    gang that did not end well; ``exit_code`` is 0 if all did and None while it is open, or if no task ever told one.
    ``gpu_milli`` and ``tasks``: what it asks for, all gangs of all elements together. ``request`` is the idempotency
    key of its submission by ``actor``. ``spec`` is there only where one job was asked for.
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
    starting: int = 0  # so many of the gangs
    running: int = 0  # the broken ones among them
    stopping: int = 0
    failed: int = 0
    cancelled: int = 0
    over: int = 0  # those that failed or were cancelled among them
    spec: JobSpec | None = None

    @property
    def gpus(self) -> int:
        """Whole GPUs; a part of one counts as one."""
        return -(-self.gpu_milli // 1000)

    @property
    def is_over(self) -> bool:
        return self.over == self.gangs


class AttemptRow(Struct):
    """One run of a gang. ``state``: starting, running, broken, stopping, ended. Its last ``spares`` seats are idle."""

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

    @property
    def nodes(self) -> tuple[str, ...]:
        """Each node once, in rank order."""
        return tuple(dict.fromkeys(seat.node for seat in self.seats))


class UsageRow(Struct):
    """What a user held in a queue on a day (UTC, YYYY-MM-DD), what of it was in vain, and how many jobs were submitted.

    What was lost is counted on the day on which it was lost.
    """

    queue: str
    user: str
    day: str
    gpu_ms: int = 0
    lost_gpu_ms: int = 0
    jobs: int = 0


class RequestRow(Struct, frozen=True):
    """A submission with an idempotency key: what was submitted (``fingerprint``), and the jobs that came of it."""

    actor: str
    key: str
    fingerprint: str
    at_ms: int
    jobs: tuple[str, ...]


class JobQuery(Struct, frozen=True, kw_only=True):
    """Which jobs, newest first. All conditions hold at once.

    ``queues`` are the queues that whoever asks may see, each with all below it (None: all of them); jobs of the user
    ``users_own`` are seen wherever they are. ``queue`` means it and all below it; ``name`` may end in ``*``; a job has
    all of the ``labels``; ``since_ms`` up to but not including ``until_ms`` is when it was submitted.
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
    limit: int = PAGE
    cursor: str | None = None


class JobPage(Struct, frozen=True):
    """``cursor`` leads to the next page; None: there is none."""

    jobs: tuple[JobRow, ...]
    cursor: str | None = None


class UsageQuery(Struct, frozen=True, kw_only=True):
    """Which usage. Days are included at both ends. ``now_ms``: with what is being used by then, not yet over."""

    queues: tuple[str, ...] | None = None
    users_own: str | None = None
    queue: str | None = None
    user: str | None = None
    since: str | None = None
    until: str | None = None
    now_ms: int | None = None


class JobRecords(Struct, frozen=True):
    """Records about a job, in order. There are no others up to the record ``upto``; ``head`` is the last of all."""

    records: list[Record]
    upto: int
    head: int


class BadCursor(ValueError):
    """A cursor that no page gave."""


class Lookup(Protocol):
    """Safe to ask from any thread. Answers from what is durable."""

    def jobs(self, query: JobQuery) -> JobPage: ...

    def job(self, id: str) -> JobRow | None:
        """One job, with its spec."""
        ...

    def attempts(self, job: str) -> list[AttemptRow]:
        """All runs of all its gangs, by element, gang and number."""
        ...

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """By day, queue and user."""
        ...

    def request(self, actor: str, key: str) -> RequestRow | None: ...

    def records_of(self, job: str, after: int, limit: int) -> JobRecords:
        """Records about a job above a number, as far as they are not archived. At most ``limit`` of them, and perhaps
        fewer than there are: ``upto`` says how far to go on from."""
        ...


def request_mark(key: str, fingerprint: str) -> str:
    """What ``Entry.request`` says of a submission: its idempotency key and a digest of what was sent (no spaces)."""
    assert " " not in fingerprint
    return f"{fingerprint} {key}"


def read_request_mark(mark: str) -> tuple[str, str]:
    """Key and fingerprint; two empty texts for an entry without a key."""
    fingerprint, _, key = mark.partition(" ")
    return key, fingerprint


def after_cursor(cursor: str | None) -> int:
    """The number below which the next page begins."""
    if cursor is None:
        return 1 << 62
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
        raise BadCursor(f"{cursor!r} is not a cursor. Use the one that came with the page before.")
    return int(cursor)


def lies_in(queue: str, root: str) -> bool:
    """Whether a queue is another, or below it; everything is below the empty name."""
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
    )


def _is_named(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted
