"""The cluster at a glance, and its changes as they happen: what a page that stays open is drawn from.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from corral.wire.api.answers import Answer, Body
from corral.wire.api.cluster import QueueView
from corral.wire.api.jobs import JobSummary
from corral.wire.api.record import EventView

LivePart = Literal["nodes", "queues"]


class LiveParameters(Body, frozen=True):
    """``parts``: what is wanted beside the overview. ``follow``: continue with changes as server-sent events."""

    parts: tuple[LivePart, ...] = ()
    follow: bool = False


class GpuCounts(Answer, frozen=True):
    """GPUs by state; each is counted once. ``held``: given to a gang that does not run yet, or no longer. ``sick``:
    taken out for its health, or the health of its node. ``closed``: free, on a node that is drained or cordoned."""

    total: int = 0
    running: int = 0
    held: int = 0
    free: int = 0
    closed: int = 0
    sick: int = 0
    lost: int = 0


class ModelCounts(Answer, frozen=True):
    """The GPUs of one model."""

    model: str
    gpus: GpuCounts


class AlarmView(Answer, frozen=True):
    """Something that is wrong now, and what to do about it. ``node``, ``job`` or ``fleet``: what it is about."""

    level: Literal["error", "warning"]
    code: str
    text: str
    hint: str = ""
    node: str = ""
    job: str = ""
    fleet: str = ""


class ClusterOverview(Answer, frozen=True):
    """The cluster in numbers. Nodes and GPUs are those of the whole cluster; gangs are those of the queues that the
    user may see. ``utilisation_percent``: mean over all GPUs that are measured."""

    gpus: GpuCounts
    models: tuple[ModelCounts, ...] = ()
    nodes: int = 0
    nodes_closed: int = 0  # they take no new tasks
    gangs_waiting: int = 0
    gangs_running: int = 0
    gpu_milli_waiting: int = 0
    utilisation_percent: int | None = None
    gpus_measured: int = 0
    gpus_simulated: int = 0
    alarms: tuple[AlarmView, ...] = ()
    alarms_total: int = 0


class NodeCell(Answer, frozen=True):
    """A node on the map. ``gpus`` has one letter for each GPU: **r**\\ unning, **h**\\ eld, **f**\\ ree, **c**\\ losed,
    **s**\\ ick or **l**\\ ost. ``jobs``: the job on each GPU, "" if there is none or the user may not see it.
    ``path``: its domains, in the order of the levels."""

    name: str
    path: tuple[str, ...]
    state: Literal["open", "cordoned", "draining", "drained", "sick", "lost"]
    gpus: str
    model: str = ""
    jobs: tuple[str, ...] = ()
    utilisation_percent: tuple[int | None, ...] = ()
    temperature_c: tuple[int | None, ...] = ()
    fleet: str = ""
    why: str = ""


class JobOnMap(Answer, frozen=True):
    """A job that holds GPUs. ``saved_ms``: when its oldest gang last committed a checkpoint; None: never."""

    name: str
    queue: str
    user: str
    started_ms: int | None = None
    saved_ms: int | None = None


class TopologyView(Answer, frozen=True):
    """All nodes where they are in the topology, and the jobs on them that the user may see, by their numbers."""

    at_ms: int
    levels: tuple[str, ...]
    nodes: tuple[NodeCell, ...]
    jobs: dict[str, JobOnMap] = field(default_factory=dict)


class PricesView(Answer, frozen=True):
    """What a GPU-hour costs, by model, in thousandths of the currency. ``other_milli``: of all others."""

    currency: str = ""
    gpu_hour_milli: dict[str, int] = field(default_factory=dict)
    other_milli: int = 0


class LiveView(Answer, frozen=True):
    """Everything at one time. ``seq``: the newest record that it includes. ``events``: the newest ones first."""

    seq: int
    at_ms: int
    version: str
    overview: ClusterOverview
    leads: bool = True  # whether this server is the leader; a standby cannot change anything
    leader: str = ""  # the address of the leader, on a standby that knows it
    prices: PricesView | None = None  # if the site has set any
    events: tuple[EventView, ...] = ()
    topology: TopologyView | None = None
    queues: tuple[QueueView, ...] | None = None


class LiveChange(Answer, frozen=True):
    """What has changed since the last one. What is None has not changed. ``nodes`` and ``jobs``: those that changed, as
    they are now; a node that is in ``nodes_gone`` was removed. ``nodes_in_order``: the names of all nodes along the
    topology, if nodes came, went or moved. ``more_jobs``: other jobs have changed too, read them again."""

    seq: int
    at_ms: int
    overview: ClusterOverview | None = None
    events: tuple[EventView, ...] = ()
    jobs: tuple[JobSummary, ...] = ()
    nodes: tuple[NodeCell, ...] = ()
    nodes_gone: tuple[str, ...] = ()
    nodes_in_order: tuple[str, ...] | None = None
    jobs_on_map: dict[str, JobOnMap] = field(default_factory=dict)
    queues: tuple[QueueView, ...] | None = None
    more_jobs: bool = False


class LineParameters(Body, frozen=True):
    """``queue``: only gangs of it and its children; they keep their places."""

    queue: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class LinePlace(Answer, frozen=True):
    """A waiting gang in the order in which gangs are served. ``place`` counts all gangs, also those that the user may
    not see. ``reason``: why it waits, in short."""

    place: int
    gang: str
    job: str
    name: str
    queue: str
    user: str
    priority: int
    gpus: int
    waiting_since_ms: int
    reason: str = ""
    starts_ms: int | None = None


class LineView(Answer, frozen=True):
    """Gangs in the order in which the next plan considers them, if nothing changes. ``waiting``: all gangs that wait to
    be served; those that are held or wait for other jobs are not among them."""

    at_ms: int
    waiting: int
    gangs: tuple[LinePlace, ...] = ()


class SearchParameters(Body, frozen=True):
    """``text``: a part of the name of a job, node, queue or user, or the number of a job. Empty: matches nothing."""

    text: Annotated[str, Meta(max_length=100)] = ""
    limit: Annotated[int, Meta(ge=1, le=50)] = 8


class SearchView(Answer, frozen=True):
    """What matches, of each kind the first few."""

    jobs: tuple[JobSummary, ...] = ()
    nodes: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
