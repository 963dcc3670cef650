"""Events, usage, health.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from corral.wire.api.answers import Answer


class EventView(Answer, frozen=True):
    """One record of the journal: ``seq`` orders all records, ``data`` is the event itself.

    ``type`` is the name of the event; queue, job, gang and user are set if the event has one.
    """

    seq: int
    at_ms: int
    actor: str
    type: str
    text: str
    queue: str = ""
    job: str = ""
    gang: str = ""
    user: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class EventList(Answer, frozen=True):
    """A page of records. ``next``: where the next page begins; ``head``: the newest durable record; below
    ``next`` if the page was asked for after a record that this journal does not have."""

    events: tuple[EventView, ...]
    next: int
    head: int


class UsageLine(Answer, frozen=True):
    """Usage of a user in a queue on a day (UTC, YYYY-MM-DD). ``lost_gpu_ms``: the part of it that was lost work."""

    queue: str
    user: str
    day: str
    gpu_ms: int
    lost_gpu_ms: int
    jobs: int


class UsagePart(Answer, frozen=True):
    """GPU time of a user in a queue on GPUs of one model. ``cost_milli``: at the prices of the site, in thousandths of
    the currency; 0: no price is set."""

    queue: str
    user: str
    model: str
    gpu_ms: int
    cost_milli: int = 0


class UsageLoss(Answer, frozen=True):
    """Work that was lost, by why the attempts ended: what they were preempted for, or how they failed."""

    cause: str
    lost_gpu_ms: int
    attempts: int


class UsageParts(Answer, frozen=True):
    """GPU time of attempts by model, and lost work by cause. Models are those that the nodes have now; "" is that of
    nodes that are gone. ``is_complete`` false: only the newest attempts were counted."""

    parts: tuple[UsagePart, ...]
    losses: tuple[UsageLoss, ...]
    currency: str = ""
    cost_milli: int = 0
    is_complete: bool = True


class UsageView(Answer, frozen=True):
    lines: tuple[UsageLine, ...]
    gpu_ms: int
    lost_gpu_ms: int


class IntervalView(Answer, frozen=True):
    """How often a job should save, in milliseconds, and which parts of its time are lost with that, in millionths.

    From the cost of its last save (``stall_ms`` of ``save_ms`` stopped the work), the mean time between failures of its
    nodes, and the mean time of its restarts.
    """

    interval_ms: int
    saving_ppm: int
    repeated_ppm: int
    restarting_ppm: int
    stall_ms: int
    save_ms: int
    mtbf_ms: int
    restart_ms: int


class GoodputView(Answer, frozen=True):
    """Which part of the time was training. ``ms``: time by cause; of several gangs and of the cluster it is GPU time
    (``is_gpu_time``). ``ratio_ppm``: trained, of all, in millionths. ``advice``: only of a job that saves."""

    ratio_ppm: int
    ms: dict[str, int]
    is_gpu_time: bool = False
    attempts: int = 0
    failures: int = 0
    saves: int = 0
    advice: IntervalView | None = None


class HealthView(Answer, frozen=True):
    """The health of the server; the only response that needs no token. ``leader``: address of the leader, as far as
    a standby knows. ``database``: "" for a file, "ok", or one word for its fault; ``waits_for``: the same as a text.
    ``following``: whether the answers of this server are up to date. ``seq``: the newest record that it knows; a
    standby last verified that ``followed_s_ago``. A leader reports its last commit, and how long it leads without
    another renewal."""

    status: Literal["ok", "starting", "failed"]
    version: str
    role: Literal["leader", "standby"] = "leader"
    leader: str = ""
    database: str = ""
    waits_for: str = ""
    following: bool = True
    followed_s_ago: float | None = None
    seq: int = 0
    committed_s_ago: float | None = None
    leading_for_s: float | None = None
