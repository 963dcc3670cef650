"""The record: events as the feed tells them, usage, health.

Shapes and units only: nothing of HTTP, of rights, or of how an answer is found.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from corral.wire.api.answers import Answer


class EventView(Answer, frozen=True):
    """One record of the journal, as the feed tells it: ``seq`` orders all records, ``data`` is the event itself.

    ``type`` is the name of the event; queue, job, gang and user are what it is about, where it is about one.
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
    """A page of the record. ``next`` is what to ask for after it; ``head`` the newest durable number."""

    events: tuple[EventView, ...]
    next: int
    head: int


class UsageLine(Answer, frozen=True):
    """What a user had in a queue on a day (UTC, YYYY-MM-DD). ``lost_gpu_ms`` is the part of it that was in vain."""

    queue: str
    user: str
    day: str
    gpu_ms: int
    lost_gpu_ms: int
    jobs: int


class UsageView(Answer, frozen=True):
    lines: tuple[UsageLine, ...]
    gpu_ms: int
    lost_gpu_ms: int


class HealthView(Answer, frozen=True):
    """Whether the server is in service; the only thing told to everybody. ``leader``: where the one that leads
    answers, as far as a standby knows. ``database``: "" for a file, "ok", or one word for what is wrong with it;
    ``waits_for`` says that in words. ``following``: whether what this server answers is what is durable. The newest
    record that it knows is ``seq``; a standby was last sure of that ``followed_s_ago``. A leader tells when it last
    committed something, and for how long it leads without another renewal."""

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
