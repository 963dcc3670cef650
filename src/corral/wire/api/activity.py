"""What jobs and nodes do now: GPU utilisation, memory and power, CPU, steps.

Types and units only, not HTTP, rights, or how an answer is computed. None: unknown.
"""

from __future__ import annotations

from msgspec import field

from corral.wire.api.answers import Answer
from corral.wire.api.words import JobState


class GpuActivityView(Answer, frozen=True):
    """One GPU. ``idle_ms``: for how long it has done no work. ``simulated``: its figures are made up."""

    slot: int
    utilisation_percent: int | None = None
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    idle_ms: int | None = None
    simulated: bool = False


class RankActivityView(Answer, frozen=True):
    """One rank. ``step``, ``step_ms`` (recent mean) and ``metrics`` are what the program reports with
    ``training.report``; a metric that is null is nan or infinite. ``parameters``: a step, and the fingerprint of the
    parameters after it."""

    rank: int
    cpu_milli: int | None = None
    step: int | None = None
    step_ms: int | None = None
    since_step_ms: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    parameters: tuple[int, str] | None = None


class TaskActivityView(Answer, frozen=True):
    """One task. ``age_ms``: how old the figures are. ``cpu_given_milli``, ``memory_given_mib``: what it requested."""

    gang: str
    attempt: int
    task: int
    node: str
    age_ms: int | None = None
    cpu_milli: int | None = None
    cpu_given_milli: int | None = None
    memory_mib: int | None = None
    memory_given_mib: int | None = None
    gpus: tuple[GpuActivityView, ...] = ()
    ranks: tuple[RankActivityView, ...] = ()


class ActivityTotals(Answer, frozen=True):
    """Several tasks or GPUs together. ``utilisation_percent``: mean over the ``gpus_measured``."""

    gpus: int = 0
    gpus_measured: int = 0
    gpus_simulated: int = 0
    utilisation_percent: int | None = None
    gpu_memory_used_mib: int | None = None
    gpu_memory_mib: int | None = None
    power_mw: int | None = None
    cpu_milli: int | None = None
    cpu_given_milli: int | None = None
    memory_mib: int | None = None
    memory_given_mib: int | None = None


class JobActivity(Answer, frozen=True):
    """What a job does now. ``tasks``: the first ones that hold seats, of ``tasks_total``. ``notes``: what looks wrong,
    such as idle GPUs or a rank that hangs."""

    job: str
    name: str
    state: JobState
    user: str
    queue: str
    at_ms: int
    total: ActivityTotals
    started_ms: int | None = None
    tasks: tuple[TaskActivityView, ...] = ()
    tasks_total: int = 0
    notes: tuple[str, ...] = ()


class JobActivityLine(Answer, frozen=True):
    """A job among others. ``step``, ``step_ms`` and ``loss`` are those of the lowest rank that reports them."""

    job: str
    name: str
    user: str
    queue: str
    total: ActivityTotals
    started_ms: int | None = None
    step: int | None = None
    step_ms: int | None = None
    loss: float | None = None
    notes: tuple[str, ...] = ()


class NodeActivityLine(Answer, frozen=True):
    """A node among others. ``gpus_used``: held by jobs; the GPU figures are over all GPUs of the node."""

    node: str
    total: ActivityTotals
    age_ms: int | None = None
    gpus_used: int = 0


class ClusterActivity(Answer, frozen=True):
    """What the cluster does now. ``jobs``: running ones that the user may see, most GPUs first, of ``jobs_total``;
    ``nodes``: the busiest first, of ``nodes_total``; ``total``: over all nodes."""

    at_ms: int
    total: ActivityTotals
    gpus_used: int = 0
    nodes: tuple[NodeActivityLine, ...] = ()
    nodes_total: int = 0
    jobs: tuple[JobActivityLine, ...] = ()
    jobs_total: int = 0
