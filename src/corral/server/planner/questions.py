"""Requests to the planner and its answers, as values for both sides of the pipe.

Knows no policy: the server does not load any.
"""

from __future__ import annotations

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec, QueueSpec
from corral.policy.explain.reasons import Change, Hold


class PlannerQuestion(Struct, frozen=True, gc=False):
    """Asks why a gang waits, what to expect of these gangs, what would happen to these jobs or with these settings of a
    queue, or which gangs are the first ``most`` in line, at this time."""

    now_ms: int
    gang: str = ""
    user: str = ""
    specs: dict[str, JobSpec] = {}
    gangs: tuple[str, ...] = ()
    most: int = 0
    queue: QueueSpec | None = None


class WhyAnswer(Struct, frozen=True, gc=False):
    hold: Hold
    changes: tuple[Change, ...] = ()


class StartOutlook(Struct, frozen=True, gc=False):
    """Why a gang waits, in short: only its first reason, and no jobs in the way; and when it is expected to start.
    ``assumed_ms``: the run time that is assumed of a job that is to end then and states no limit; 0: it states one."""

    hold: Hold
    starts_ms: int | None = None
    assumed_ms: int = 0


class DryRunOutcome(Struct, frozen=True, gc=False):
    """What would happen to one gang if it were submitted now."""

    gang: str
    seats: tuple[Seat, ...] = ()  # its seats, now or later
    starts_ms: int | None = None  # None: unknown
    assumed_ms: int = 0  # as in StartOutlook
    victims: tuple[str, ...] = ()  # gangs that would be preempted first
    hold: Hold | None = None
    changes: tuple[Change, ...] = ()  # each of which alone would let it start now


class ReclaimedGang(Struct, frozen=True, gc=False):
    """A gang that would have to leave, and for which one."""

    gang: str
    beneficiary: str


class QueueOutcome(Struct, frozen=True, gc=False):
    """What the next plan would do with other settings of a queue, beyond what it does anyway. ``kept_waiting``: gangs
    that would start by the settings of now, and would not by these."""

    reclaimed: tuple[ReclaimedGang, ...] = ()
    starts: tuple[str, ...] = ()
    kept_waiting: tuple[str, ...] = ()


class PlannerAnswer(Struct, frozen=True, gc=False):
    """The answer, or a refusal."""

    refusal: Refusal | None = None
    why: WhyAnswer | None = None
    prospects: tuple[DryRunOutcome, ...] = ()
    outlooks: tuple[StartOutlook, ...] = ()
    queue: QueueOutcome | None = None
    line: tuple[str, ...] = ()  # gangs in the order of their turns
