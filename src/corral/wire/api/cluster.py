"""Queues with their terms and what they have; machines with their GPUs.

Shapes and units only: nothing of HTTP, of rights, or of how an answer is found.
"""

from __future__ import annotations

from msgspec import field

from corral.wire.api.answers import Answer, Body
from corral.wire.api.words import HealthWord
from corral.wire.details import NodeDetails


class BudgetBody(Body, frozen=True):
    """At most so many GPU-milliseconds in each window; windows follow one another from ``anchor_ms``."""

    gpu_ms: int
    window_ms: int
    anchor_ms: int = 0


class QuotaChangeBody(Body, frozen=True):
    """A change of quota from one time to another, added to what the queue has otherwise."""

    from_ms: int
    until_ms: int
    guarantee: dict[str, int] = field(default_factory=dict)
    limit: dict[str, int] = field(default_factory=dict)


class QueueBody(Body, frozen=True):
    """The terms of a queue; what is not stated is not bounded. As ``QueueSpec``, its name is in the path."""

    guarantee: dict[str, int] = field(default_factory=dict)
    limit: dict[str, int] = field(default_factory=dict)
    lend: dict[str, int] = field(default_factory=dict)
    weight: int = 1
    user_limit: dict[str, int] = field(default_factory=dict)
    max_jobs: int | None = None
    max_jobs_per_user: int | None = None
    budget: BudgetBody | None = None
    changes: tuple[QuotaChangeBody, ...] = ()
    priority_ceiling: int | None = None
    time_share: int = 0
    grace_max_ms: int | None = None
    preemptible: bool | None = None


class QueueView(Answer, frozen=True):
    """A queue: its terms, what it has, what it borrowed, and who waits in it and below it.

    ``guarantee`` and ``limit`` hold now (scheduled changes counted); ``terms`` are as they were set.
    """

    name: str
    parent: str | None
    children: tuple[str, ...]
    terms: QueueBody
    guarantee: dict[str, int]
    limit: dict[str, int]
    used: dict[str, int]
    borrowed: dict[str, int]
    jobs: int  # not over, in this queue itself
    gangs_waiting: int
    gangs_running: int
    gpu_milli_pending: int
    used_gpu_ms: int
    loss_suffered_gpu_ms: int = 0
    loss_caused_gpu_ms: int = 0
    budget_spent_gpu_ms: int | None = None


class QueueList(Answer, frozen=True):
    """The tree of queues one may see, each before those below it."""

    queues: tuple[QueueView, ...]


class GpuView(Answer, frozen=True):
    """One GPU. ``gangs`` are those on it that one may see; ``busy`` whether there are any at all."""

    slot: int
    uuid: str
    model: str
    vram_mib: int
    health: HealthWord
    simulated: bool
    busy: bool
    gangs: tuple[str, ...] = ()
    why: str = ""  # what was last said about its health


class NodeView(Answer, frozen=True):
    """A machine. ``open``: it takes new tasks. ``domains`` names where it stands, by level."""

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
    why: str = ""  # what was last said about its health
    details: NodeDetails | None = None  # what it is made of, if it has told
    lacks: dict[str, str] = field(default_factory=dict)  # what it cannot run or limit, and why
    fleet: str = ""  # that it came with
    where: str = ""  # in words of the engine that lends it
    until_ms: int | None = None  # when it is taken away, if that is known


class NodeList(Answer, frozen=True):
    nodes: tuple[NodeView, ...]


class DrainBody(Body, frozen=True):
    """Why a node is to be emptied: a word for those who read the log of the server."""

    why: str = ""
