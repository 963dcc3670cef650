"""Effects: what must be done for the state. Derived from the state alone, so that a restart forgets nothing.

An effect is due until a report shows that it was executed; executing it twice must do no harm.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.model import Cause, Gang, GangState
from corral.core.state import State


class StartGang(Struct, frozen=True, gc=False, tag=True):
    """Start the tasks of an attempt that do not run yet. Older attempts of the gang are stopped first."""

    gang: str
    attempt: int
    seats: tuple[Seat, ...]


class WarnGang(Struct, frozen=True, gc=False, tag=True):
    """Warn the tasks: save a checkpoint and stop before the deadline."""

    gang: str
    attempt: int
    cause: Cause
    deadline_ms: int


class KillGang(Struct, frozen=True, gc=False, tag=True):
    """The grace period has expired: kill the running tasks of the attempt."""

    gang: str
    attempt: int


Effect = StartGang | WarnGang | KillGang


def owed(gang: Gang) -> Effect | None:
    """The effect that is due for one gang, if any."""
    if gang.state is GangState.STARTING:
        return StartGang(gang.id, gang.attempt, gang.seats)
    if gang.state is GangState.STOPPING and gang.eviction is not None:
        if gang.grace_over:
            return KillGang(gang.id, gang.attempt)
        return WarnGang(gang.id, gang.attempt, gang.eviction.cause, gang.eviction.deadline_ms)
    return None


def effects(state: State, gangs: Iterable[str] | None = None) -> list[Effect]:
    """The effects that are due for these gangs, or for all (after a restart)."""
    known = state.gangs
    return [effect for name in (state.holders if gangs is None else gangs) if (effect := owed(known[name])) is not None]
