"""What the state owes the world. Derived from state alone, so that after a restart nothing is forgotten.

An effect is owed until a report says it was carried out; carrying it out twice must do no harm.
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
    """Tell the tasks to save and leave by the deadline."""

    gang: str
    attempt: int
    cause: Cause
    deadline_ms: int


class KillGang(Struct, frozen=True, gc=False, tag=True):
    """The grace is over: end what still runs of the attempt."""

    gang: str
    attempt: int


Effect = StartGang | WarnGang | KillGang


def owed(gang: Gang) -> Effect | None:
    """What is owed for one gang, if anything."""
    if gang.state is GangState.STARTING:
        return StartGang(gang.id, gang.attempt, gang.seats)
    if gang.state is GangState.STOPPING and gang.eviction is not None:
        if gang.grace_over:
            return KillGang(gang.id, gang.attempt)
        return WarnGang(gang.id, gang.attempt, gang.eviction.cause, gang.eviction.deadline_ms)
    return None


def effects(state: State, gangs: Iterable[str] | None = None) -> list[Effect]:
    """What is owed for these gangs, or for all of them (after a restart)."""
    known = state.gangs
    return [effect for name in (state.holders if gangs is None else gangs) if (effect := owed(known[name])) is not None]
