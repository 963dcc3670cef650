"""Jobs: lists, details, submission, reasons for waiting, dry runs.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from corral.wire.api.answers import Answer, Body, FaultView
from corral.wire.api.constraints import Priority
from corral.wire.api.words import CauseWord, FailureWord, GangStateWord, JobState


class GangCounts(Answer, frozen=True):
    """How many gangs of a job are in each state. In an array with one gang to each element these are its elements."""

    total: int = 0
    starting: int = 0
    running: int = 0
    stopping: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class JobSummary(Answer, frozen=True):
    """A job in a list. ``gpus`` and ``tasks``: requested in total; ``attempts``: of all its gangs.

    ``gpus_held``: what it holds now; ``nodes``: the first nodes it runs on, of ``nodes_held``. ``reason``: why it
    waits, in short; ``starts_ms``: when it is expected to start, if that is known; ``starts_note``: what is assumed
    for that.
    """

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
    counts: GangCounts | None = None
    gpus_held: int = 0
    nodes: tuple[str, ...] = ()
    nodes_held: int = 0
    reason: str = ""
    starts_ms: int | None = None
    starts_note: str = ""


class SeatView(Answer, frozen=True):
    """The placement of one task: ``gpus`` are slot numbers on the node; ``slice_mib`` is set if the GPU is shared."""

    task: int
    node: str
    gpus: tuple[int, ...] = ()
    slice_mib: int = 0


class GangView(Answer, frozen=True):
    """A gang of a job that is still in memory. ``index`` numbers the elements of an array."""

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
    priority: int = 0
    held: bool = False  # it does not start until it, or its job, is released
    slow_ranks: tuple[str, ...] = ()  # ranks for which the others wait, in words


class FirstFailureView(Answer, frozen=True):
    """The failure from which the others of an attempt follow. ``said``: the last words of the process, or why it could
    not run. ``text``: all of it in one line."""

    text: str
    node: str
    task: int
    exit_code: int = 0
    rank: int | None = None  # None: the gang has one process
    said: str = ""


class AttemptView(Answer, frozen=True):
    """One attempt of one gang, ended or not. ``cause``: why it was preempted; ``beneficiary``: for which gang.
    ``gpu_ms``: GPU time that it has held, with the GPUs that it really had."""

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
    gpu_ms: int = 0
    lost_gpu_ms: int = 0
    first_failure: FirstFailureView | None = None


class JobView(JobSummary, frozen=True, kw_only=True):
    """A job in full. ``command`` and ``env`` are of its first gang; ``env`` is shown to users who may change the job.

    ``gangs``: the current state (empty once the job was dropped from memory); ``history``: all attempts so far.
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


class OutputHead(Answer, frozen=True, omit_defaults=True):
    """The line before each part of the output of a job; ``size`` bytes of output follow it.

    ``offset`` counts in the stream of the task; ``label`` distinguishes the processes of the job; ``at_ms``: when the
    node read it, 0 if unknown. ``over``: nothing follows, the output is complete. Without a gang it only keeps the
    connection open.
    """

    gang: str = ""
    attempt: int = 0
    task: int = 0
    rank: int = 0
    stream: str = ""
    at_ms: int = 0
    offset: int = 0
    size: int = 0
    label: str = ""
    over: bool = False


class JobList(Answer, frozen=True):
    """A page of jobs, newest first or as sorted. ``cursor`` leads to the next page; None: this was the last. ``total``:
    of a sorted list, how many jobs there are in all."""

    jobs: tuple[JobSummary, ...]
    cursor: str | None = None
    total: int | None = None


class DocumentText(Body, frozen=True):
    """A job file: YAML, with one or more jobs."""

    text: str


class PlacedFaultView(FaultView, frozen=True, kw_only=True):
    """An error in a text; lines and columns count from 1."""

    line: int
    column: int


class DocumentCheck(Answer, frozen=True):
    """The documents in a text, as far as it can be read, and all errors in them."""

    documents: tuple[dict[str, Any], ...] = ()
    faults: tuple[PlacedFaultView, ...] = ()


class DocumentOfJob(Answer, frozen=True):
    """A document that gives the same job when it is submitted."""

    job: str
    document: dict[str, Any]


class AttemptLine(Answer, frozen=True):
    """An attempt among those of all jobs. ``name`` is empty if the job was dropped from memory."""

    gang: str
    job: str
    name: str
    queue: str
    user: str
    attempt: int
    placed_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    failure: FailureWord | None = None
    seats: tuple[SeatView, ...] = ()


class ReservedStart(Answer, frozen=True):
    """A waiting gang with a reserved start. ``ends_ms``: when it is expected to end."""

    gang: str
    job: str
    name: str
    queue: str
    user: str
    starts_ms: int
    ends_ms: int
    seats: tuple[SeatView, ...] = ()


class AttemptList(Answer, frozen=True):
    """Attempts that ran in a time, newest first, and reserved starts."""

    at_ms: int
    attempts: tuple[AttemptLine, ...]
    reserved: tuple[ReservedStart, ...] = ()


class SubmitAnswer(Answer, frozen=True):
    """A job was accepted and is durable. ``seq`` is the number of its record: events can be followed from there."""

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
    """The change is durable under this record number."""

    seq: int


class PriorityBody(Body, frozen=True):
    priority: Priority


class JobFilter(Body, frozen=True):
    """Which unfinished jobs: all conditions must hold, and there must be one; ``all``: every job that the user may
    change. ``queue`` includes its children; ``name`` may end in ``*``; ``labels``: key=value each. ``search``: part of
    its name, queue or user, or the start of its number. ``node``, ``gpu_model``: it holds seats there now."""

    name: str | None = None
    search: str | None = None
    node: str | None = None
    gpu_model: str | None = None
    states: tuple[JobState, ...] = ()
    user: str | None = None
    queue: str | None = None
    labels: tuple[str, ...] = ()
    since_ms: int | None = None  # submitted then or later
    before_ms: int | None = None  # submitted before
    all: bool = False


class ChangeJobsBody(Body, frozen=True):
    """A change of many jobs: of those in ``jobs``, such as ``35``, ``35[3-9]`` or ``35/trainer``, or of all that match
    ``filter``. ``dry_run``: only count them. ``expect``: change nothing unless exactly as many match. ``now``: cancel
    without grace."""

    change: Literal["cancel", "hold", "release", "requeue", "priority"]
    jobs: tuple[str, ...] = ()
    filter: JobFilter | None = None
    priority: int | None = None
    now: bool = False
    dry_run: bool = False
    expect: int | None = None


class RefusedJob(Answer, frozen=True):
    """A job that was not changed, and why."""

    job: str
    code: str
    why: str
    hint: str = ""


class ChangeJobsAnswer(Answer, frozen=True):
    """How many jobs the request is about, how many were changed and how many were refused; ``refusals``: of the first
    of these. ``seq``: the record under which the last change is durable."""

    matched: int
    changed: int
    refused: int = 0
    refusals: tuple[RefusedJob, ...] = ()
    seq: int = 0


class ReasonView(Answer, frozen=True):
    """One reason why a gang waits: ``code`` is stable, ``numbers`` are its values, ``text`` is for people."""

    code: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


class InTheWayView(Answer, frozen=True):
    """A gang whose end would help. If the user may not see its queue, only its size and end are shown."""

    gpu_milli: int
    ends_ms: int
    text: str
    gang: str = ""
    job: str = ""
    queue: str = ""
    user: str = ""
    assumption: str = ""  # what its end is based on, if neither a limit nor an estimate is stated


class ChangeView(Answer, frozen=True):
    """A change of the request that alone would let it start now."""

    field: str
    value: str
    text: str


class GangWhy(Answer, frozen=True):
    """All reasons of one gang; none: it does not wait."""

    gang: str
    state: GangStateWord
    reasons: tuple[ReasonView, ...] = ()
    in_the_way: tuple[InTheWayView, ...] = ()
    changes: tuple[ChangeView, ...] = ()
    starts_ms: int | None = None  # expected start, if known


class WhyView(Answer, frozen=True):
    """Why a job waits, gang by gang; of an array the first few that wait, of ``gangs_waiting`` in total."""

    job: str
    state: JobState
    at_ms: int
    gangs_waiting: int
    gangs: tuple[GangWhy, ...]


class QuotaLine(Answer, frozen=True):
    """One resource of one queue on a job's path, and what the job would add. None: not limited."""

    queue: str
    name: str
    used: int
    asked: int
    guarantee: int | None = None
    limit: int | None = None
    borrowed: int = 0  # beyond the guarantee, with the request


class DryRunGang(Answer, frozen=True):
    """What would happen to one gang. ``outcome``: it starts, others are preempted for it, or it waits."""

    gang: str
    outcome: Literal["starts", "makes_room", "waits"]
    seats: tuple[SeatView, ...] = ()
    victims: tuple[
        str, ...
    ] = ()  # gangs that would be preempted; those that the user may not see are counted in victims_hidden
    victims_hidden: int = 0
    starts_ms: int | None = None
    starts_note: str = ""
    reasons: tuple[ReasonView, ...] = ()
    changes: tuple[ChangeView, ...] = ()


class DryRunAnswer(Answer, frozen=True):
    """What would happen to jobs if they were submitted now. Nothing was stored."""

    at_ms: int
    gangs: tuple[DryRunGang, ...]
    quota: tuple[QuotaLine, ...] = ()
