"""What should happen: decisions as values that can be printed, compared, stored, refused.

A policy makes a plan from a snapshot; commit turns the part of it that still holds into events.
Decisions name the attempt they would make or end, so that an old plan can do no harm.
"""

from __future__ import annotations

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.model import Cause, FailureClass, Reservation


class Spread(Struct, frozen=True, gc=False):
    """How far apart a placement lies: the innermost domain that holds it, and how many of each level it touches."""

    within: str
    domains: tuple[int, ...] = ()  # per level, outermost first, nodes last


class Place(Struct, frozen=True, gc=False, tag=True):
    """Start a waiting gang on these seats, in rank order; ``spares`` are held idle beside them."""

    gang: str
    attempt: int
    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()
    spread: Spread | None = None


class Victim(Struct, frozen=True, gc=False):
    """A gang that has to leave, why, and what it costs. With ``keep`` it goes on with those seats, smaller."""

    gang: str
    attempt: int
    cause: Cause
    price_gpu_ms: int
    keep: tuple[Seat, ...] = ()


class MakeRoom(Struct, frozen=True, gc=False, tag=True):
    """Have these victims leave and hold these seats for the gang until they are free. All of it or nothing."""

    gang: str
    attempt: int
    seats: tuple[Seat, ...]
    victims: tuple[Victim, ...]


class Repair(Struct, frozen=True, gc=False, tag=True):
    """Let a broken gang go on as a new attempt on these seats."""

    gang: str
    attempt: int
    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()


class Grow(Struct, frozen=True, gc=False, tag=True):
    """Have an elastic gang save and go on with these seats: those it has and more."""

    gang: str
    attempt: int
    seats: tuple[Seat, ...]


class Evict(Struct, frozen=True, gc=False, tag=True):
    """Have a gang save and leave, for nobody's sake."""

    gang: str
    attempt: int
    cause: Cause
    failure: FailureClass | None = None


class DropClaim(Struct, frozen=True, gc=False, tag=True):
    """Seats held for the gang can no longer become its own."""

    gang: str
    attempt: int


Decision = Place | MakeRoom | Repair | Grow | Evict | DropClaim


class Plan(Struct, frozen=True, gc=False):
    """All decisions of one moment. ``look_again_ms``: when another plan is due even if nothing is reported before.

    ``keeps``: the reservations are promises that later plans have to know of; those not among them are taken back.
    """

    at_ms: int
    decisions: tuple[Decision, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    look_again_ms: int | None = None
    keeps: bool = False
