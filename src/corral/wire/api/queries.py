"""Query parameters of requests. Values are text there; each has one type here.

Types and limits only. Lists are written with commas (``states=waiting,running``), pairs as ``key=value`` in them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from corral.wire.api.answers import Body
from corral.wire.api.constraints import QueueName, UserName
from corral.wire.api.words import JobState, RoleWord

Limit = Annotated[int, Meta(ge=1, le=1000)]
WhenMs = Annotated[int, Meta(ge=0, le=1 << 53)]


class SubmitParameters(Body, frozen=True):
    """``dry_run``: return what would happen, store nothing."""

    dry_run: bool = False


class CancelParameters(Body, frozen=True):
    """``now``: without grace, also if the job is being cancelled already."""

    now: bool = False


class ActivityParameters(Body, frozen=True):
    """``limit``: how many jobs, and how many nodes, are listed at most; totals are over all."""

    limit: Limit = 100


JobOrder = Literal["submitted", "name", "queue", "user", "state", "priority", "gpus", "started", "ended"]


class JobsParameters(Body, frozen=True):
    """Which jobs: all conditions must hold. ``queue`` includes its children; ``name`` may end in ``*``; ``search`` is a
    part of the name, queue or user, or the start of the number; ``node`` and ``gpu_model``: where it holds GPUs now.

    With ``sort`` the jobs come in that order, from ``offset`` on, with their ``total`` number and without a cursor.
    """

    queue: str | None = None
    user: str | None = None
    states: tuple[JobState, ...] = ()
    name: str | None = None
    labels: tuple[str, ...] = ()  # key=value each
    since_ms: WhenMs | None = None  # submitted then or later
    until_ms: WhenMs | None = None  # submitted before
    search: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    node: str | None = None
    gpu_model: str | None = None
    limit: Limit = 100
    cursor: str | None = None
    sort: JobOrder | None = None
    descending: bool = False
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class AttemptsParameters(Body, frozen=True):
    """Attempts that ran between two times; by default in the last 24 hours."""

    since_ms: WhenMs | None = None
    until_ms: WhenMs | None = None
    limit: Annotated[int, Meta(ge=1, le=5000)] = 2000


class LogsParameters(Body, frozen=True):
    """Which part of which log. ``tail``: the last N bytes; ``attempt`` 0: the newest.

    ``gang`` is a role (``main``), for an array element ``3`` or ``3/main``; empty: the first gang.
    """

    gang: str = ""
    task: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    attempt: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    stream: Literal["stdout", "stderr"] = "stdout"
    offset: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    limit: Annotated[int, Meta(ge=1, le=16 << 20)] = 1 << 20
    tail: Annotated[int, Meta(ge=1, le=16 << 20)] | None = None
    follow: bool = False


class OutputParameters(Body, frozen=True):
    """Which output of a job. ``tail``: the last N lines; ``attempt`` 0: of each gang the newest.

    ``gang`` is a role (``main``), for an array element ``3`` or ``3/main``; empty: all gangs.
    """

    gang: str = ""
    task: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    rank: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    attempt: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    stream: Literal["", "stdout", "stderr"] = ""
    tail: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    follow: bool = False


class EventsParameters(Body, frozen=True):
    """Records after ``after``. ``follow``: continue as server-sent events, with the record number as ``id``."""

    after: WhenMs = 0
    limit: Limit = 100
    follow: bool = False
    job: str | None = None
    queue: str | None = None  # with its children
    node: str | None = None  # events of this node itself, not of what runs on it
    types: tuple[str, ...] = ()


class UsageParameters(Body, frozen=True):
    """Days are UTC, ``YYYY-MM-DD``; both are included."""

    queue: str | None = None
    user: str | None = None
    since: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    until: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None


class RoleParameters(Body, frozen=True):
    role: RoleWord
    queue: QueueName = ""


class TokensParameters(Body, frozen=True):
    """The user of the tokens; empty: the caller."""

    user: UserName = ""


class TemplateParameters(Body, frozen=True):
    """``site``: the template is for all users."""

    site: bool = False


class QueueParameters(Body, frozen=True):
    """``dry_run``: change nothing, and say what the next plan would do with these settings."""

    dry_run: bool = False


class SecretParameters(Body, frozen=True):
    """The queue of the secret; its jobs and those of its children may use it."""

    queue: QueueName = ""


#: Headers of an answer with a part of a log (the body is the bytes themselves).
LOG_OFFSET = "Corral-Log-Offset"  # where the part begins, counted from the first byte ever written
LOG_NEXT = "Corral-Log-Next"  # the next offset to read
LOG_OVER = "Corral-Log-Over"  # true: the log is complete
LOG_GANG = "Corral-Log-Gang"
LOG_ATTEMPT = "Corral-Log-Attempt"


class StreamParameters(Body, frozen=True):
    """``gang``: its role or its number in an array. ``what``: what it is for, in the log of the server."""

    gang: str = ""
    task: int = 0
    what: str = ""


class SeatParameters(Body, frozen=True):
    """``task``: the name of the task that asks. ``seat``: the number of the task that it wants."""

    task: str
    seat: int
