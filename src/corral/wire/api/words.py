"""Words of responses: those of the engine, repeated so that a client need not import the engine.

A test keeps them equal to the engine's. Clients do not check them, so that an old client can read a new word.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta


class JobState(StrEnum):
    """The state of a job: the most active state of its gangs; when all have ended, how they ended."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: A job in one of these states has ended.
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

GANG_STATES = ("waiting", "starting", "running", "broken", "stopping", "succeeded", "failed", "cancelled")
FAILURES = (
    "user_error", "out_of_memory", "vram_exceeded", "gpu_fault", "network", "node_lost", "killed", "stalled",
    "start_failed", "time_limit", "preempted", "cancelled",
)  # fmt: skip
CAUSES = (
    "reclaim", "priority", "time_share", "shrink", "grow", "move", "drain", "time_limit", "start_timeout", "failure",
    "unrepairable", "cancel", "requeue",
)  # fmt: skip
HEALTHS = ("healthy", "suspect", "draining", "failed")

GangStateWord = Annotated[str, Meta(examples=list(GANG_STATES))]
FailureWord = Annotated[str, Meta(examples=list(FAILURES))]
CauseWord = Annotated[str, Meta(examples=list(CAUSES))]
HealthWord = Annotated[str, Meta(examples=list(HEALTHS))]
RoleWord = Literal["administrator", "operator", "lead", "member", "viewer"]
