"""Jobs: as they are listed and shown, how they are submitted, why they wait, what would happen.

Shapes and units only: nothing of HTTP, of rights, or of how an answer is found.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from corral.wire.api.answers import Answer, Body
from corral.wire.api.words import CauseWord, FailureWord, GangStateWord, JobState


class JobSummary(Answer, frozen=True):
    """A job in a list. ``gpus`` and ``tasks`` are what it asks for in all; ``attempts`` counts runs of its gangs."""

    id: str
    name: str
    queue: str
    user: str
    priority: int
    state: JobState
    held: bool
    submitted_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_code: int | None = None
    failure: FailureWord | None = None
    why: str = ""
    gpus: int = 0
    tasks: int = 0
    attempts: int = 0
    array_size: int = 0
    labels: dict[str, str] = field(default_factory=dict)


class SeatView(Answer, frozen=True):
    """Where one task sits: ``gpus`` are slot numbers on the node; ``slice_mib`` is set where the GPU is shared."""

    task: int
    node: str
    gpus: tuple[int, ...] = ()
    slice_mib: int = 0


class GangView(Answer, frozen=True):
    """A gang of a job that the server still has in mind. ``index`` numbers the elements of an array."""

    id: str
    role: str
    state: GangStateWord
    attempt: int
    index: int | None = None
    tasks: int = 1
    gpus: int = 0
    seats: tuple[SeatView, ...] = ()
    placed_ms: int | None = None
    started_ms: int | None = None
    not_before_ms: int | None = None
    leaving: CauseWord | None = None
    leaves_by_ms: int | None = None
    saved_step: int | None = None
    exit_code: int = 0
    retries: dict[str, int] = field(default_factory=dict)


class AttemptView(Answer, frozen=True):
    """One run of one gang, over or not. ``cause``: why it was told to leave; ``beneficiary``: for whose sake."""

    gang: str
    attempt: int
    role: str = ""
    index: int | None = None
    placed_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    failure: FailureWord | None = None
    cause: CauseWord | None = None
    beneficiary: str = ""
    lost_gpu_ms: int = 0


class JobView(JobSummary, frozen=True, kw_only=True):
    """A job in full. ``command`` and ``env`` are of its first gang; ``env`` is shown to those who may change the job.

    ``gangs`` are as they are now (empty once the job was forgotten by the engine), ``history`` all runs so far.
    """

    gangs: tuple[GangView, ...] = ()
    history: tuple[AttemptView, ...] = ()
    command: tuple[str, ...] = ()
    directory: str = ""
    env: dict[str, str] | None = None
    after: tuple[str, ...] = ()
    time_limit_ms: int | None = None
    estimate_ms: int | None = None
    begin_ms: int | None = None
    deadline_ms: int | None = None
    checkpoints: bool = False
    preemptible: bool = True


class JobList(Answer, frozen=True):
    """A page of jobs, newest first. ``cursor`` leads to the next page; None: this was the last."""

    jobs: tuple[JobSummary, ...]
    cursor: str | None = None


class SubmitAnswer(Answer, frozen=True):
    """A job was accepted and is durable. ``seq`` is the number of its record: the feed goes on from there."""

    id: str
    name: str
    queue: str
    user: str
    seq: int
    array_size: int = 0


class BatchBody(Body, frozen=True):
    """Many job documents, accepted all or none. In ``after``, ``#0`` is the first job of this batch, and so on."""

    jobs: list[dict[str, Any]]


class BatchAnswer(Answer, frozen=True):
    jobs: tuple[SubmitAnswer, ...]


class ChangeAnswer(Answer, frozen=True):
    """What was asked for is written down under this number."""

    seq: int


class PriorityBody(Body, frozen=True):
    priority: int


class ReasonView(Answer, frozen=True):
    """One thing that keeps a gang waiting: ``code`` names it, ``numbers`` are its terms, ``text`` says it."""

    code: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


class InTheWayView(Answer, frozen=True):
    """A gang whose leaving would help. Of a queue one may not see, names are empty and only size and end are told."""

    gpu_milli: int
    ends_ms: int
    text: str
    gang: str = ""
    job: str = ""
    queue: str = ""
    user: str = ""


class ChangeView(Answer, frozen=True):
    """Something to ask for instead, which alone would let it start now."""

    field: str
    value: str
    text: str


class GangWhy(Answer, frozen=True):
    """Everything that keeps one gang; no reasons: it does not wait."""

    gang: str
    state: GangStateWord
    reasons: tuple[ReasonView, ...] = ()
    in_the_way: tuple[InTheWayView, ...] = ()
    changes: tuple[ChangeView, ...] = ()
    starts_ms: int | None = None  # when it is expected to start, where that is known


class WhyView(Answer, frozen=True):
    """Why a job waits, gang by gang; of an array the first few that wait, ``gangs_waiting`` tells of how many."""

    job: str
    state: JobState
    at_ms: int
    gangs_waiting: int
    gangs: tuple[GangWhy, ...]


class QuotaLine(Answer, frozen=True):
    """One dimension of one queue on a job's path, and what the job would add. None: not governed."""

    queue: str
    name: str
    used: int
    asked: int
    guarantee: int | None = None
    limit: int | None = None
    borrowed: int = 0  # beyond the guarantee, with what is asked


class DryRunGang(Answer, frozen=True):
    """What would become of one gang. ``outcome``: it starts, others make room for it, or it waits."""

    gang: str
    outcome: Literal["starts", "makes_room", "waits"]
    seats: tuple[SeatView, ...] = ()
    victims: tuple[str, ...] = ()  # gangs that would leave; those one may not see are counted in victims_hidden
    victims_hidden: int = 0
    starts_ms: int | None = None
    reasons: tuple[ReasonView, ...] = ()
    changes: tuple[ChangeView, ...] = ()


class DryRunAnswer(Answer, frozen=True):
    """What would happen to jobs if they were submitted now. Nothing was written."""

    at_ms: int
    gangs: tuple[DryRunGang, ...]
    quota: tuple[QuotaLine, ...] = ()
