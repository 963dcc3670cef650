"""Queues with their settings and usage; nodes with their GPUs.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from msgspec import field

from corral.wire.api.answers import Answer, Body
from corral.wire.api.constraints import Amount
from corral.wire.api.words import HealthWord
from corral.wire.details import NodeDetails


class BudgetBody(Body, frozen=True):
    """A maximum of GPU-milliseconds in each window; windows follow one another from ``anchor_ms``."""

    gpu_ms: Amount
    window_ms: Amount
    anchor_ms: Amount = 0


class QuotaChangeBody(Body, frozen=True):
    """A change of quota between two times, added to the settings of the queue."""

    from_ms: Amount
    until_ms: Amount
    guarantee: dict[str, Amount] = field(default_factory=dict)
    limit: dict[str, Amount] = field(default_factory=dict)


class ReclaimedView(Answer, frozen=True):
    """A gang that would have to leave. Empty names: the user may not see the gang."""

    gpu_milli: int
    gang: str = ""
    job: str = ""
    queue: str = ""
    user: str = ""
    beneficiary: str = ""


class QueuePreview(Answer, frozen=True):
    """What the next plan would do with other settings of a queue, beyond what it does anyway: gangs that would have to
    leave, that would start, and that would no longer start. Those that the user may not see are only counted."""

    reclaimed: tuple[ReclaimedView, ...] = ()
    starts: tuple[str, ...] = ()
    starts_hidden: int = 0
    kept_waiting: tuple[str, ...] = ()


class QueueBody(Body, frozen=True):
    """The settings of a queue; what is not given is not limited. As ``QueueSpec``; its name is in the path."""

    guarantee: dict[str, Amount] = field(default_factory=dict)
    limit: dict[str, Amount] = field(default_factory=dict)
    lend: dict[str, Amount] = field(default_factory=dict)
    weight: Amount = 1
    user_limit: dict[str, Amount] = field(default_factory=dict)
    max_jobs: Amount | None = None
    max_jobs_per_user: Amount | None = None
    budget: BudgetBody | None = None
    changes: tuple[QuotaChangeBody, ...] = ()
    priority_ceiling: Amount | None = None
    time_share: Amount = 8
    grace_max_ms: Amount | None = None
    preemptible: bool | None = None


class QueueView(Answer, frozen=True):
    """A queue: its settings, usage, what it borrows, and gangs that wait in it and below it.

    ``guarantee`` and ``limit`` apply now (including scheduled changes); ``terms`` are as they were set.
    """

    name: str
    parent: str | None
    children: tuple[str, ...]
    terms: QueueBody
    guarantee: dict[str, int]
    limit: dict[str, int]
    used: dict[str, int]
    borrowed: dict[str, int]
    jobs: int  # not ended, in this queue itself
    gangs_waiting: int
    gangs_running: int
    gpu_milli_pending: int
    used_gpu_ms: int
    loss_suffered_gpu_ms: int = 0
    loss_caused_gpu_ms: int = 0
    budget_spent_gpu_ms: int | None = None


class QueueList(Answer, frozen=True):
    """The queues that the user may see, each before its children."""

    queues: tuple[QueueView, ...]


class GpuView(Answer, frozen=True):
    """One GPU. ``gangs``: those on it that the user may see; ``busy``: whether there are any."""

    slot: int
    uuid: str
    model: str
    vram_mib: int
    health: HealthWord
    simulated: bool
    busy: bool
    gangs: tuple[str, ...] = ()
    why: str = ""  # last report about its health


class NodeView(Answer, frozen=True):
    """A node. ``open``: it takes new tasks. ``domains``: its position in the topology, by level."""

    name: str
    domains: dict[str, str]
    health: HealthWord
    open: bool
    lost: bool
    drained: bool
    amounts: dict[str, int]
    free: dict[str, int]
    gpus: tuple[GpuView, ...]
    gpus_free: int
    gangs: tuple[str, ...] = ()
    gangs_hidden: int = 0
    why: str = ""  # last report about its health
    details: NodeDetails | None = None  # its hardware, if it has reported it
    lacks: dict[str, str] = field(default_factory=dict)  # what it cannot run or limit, and why
    separation: dict[str, str] = field(default_factory=dict)  # isolation of tasks there; only when one node is shown
    fleet: str = ""  # that it belongs to
    where: str = ""  # as its provider names it
    until_ms: int | None = None  # when its provider takes it back, if known
    cordoned: bool = False  # it starts nothing new, and its jobs finish


class NodeList(Answer, frozen=True):
    nodes: tuple[NodeView, ...]


class DrainBody(Body, frozen=True):
    """The reason for draining a node, for the events and the server log."""

    why: str = ""
