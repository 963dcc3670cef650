"""Plans: decisions as values that can be printed, compared, stored, refused.

A policy makes a plan from a snapshot; commit turns the part of it that still holds into events.
Decisions name the attempt they would start or end, so that an old plan can do no harm.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.model import Cause, FailureClass, Gang, Reservation, StartMoved
from corral.core.queues.quota import Shortfall


class Spread(Struct, frozen=True, gc=False):
    """The extent of a placement: the innermost domain that contains it, and the number of domains it uses per level."""

    within: str
    domains: tuple[int, ...] = ()  # per level, outermost first, nodes last


class Place(Struct, frozen=True, gc=False, tag=True):
    """Start a waiting gang on these seats, in rank order; ``spares`` are held idle beside them.

    ``out_of_turn_until_ms``: it is served out of turn because it has waited too long, and no other gang of its priority
    and its kinds of nodes is before that time. 0: it is its turn.
    """

    gang: str
    attempt: int
    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()
    spread: Spread | None = None
    out_of_turn_until_ms: int = 0


class Victim(Struct, frozen=True, gc=False):
    """A gang to preempt, why, and the price. With ``keep`` it continues with those seats, smaller."""

    gang: str
    attempt: int
    cause: Cause
    price_gpu_ms: int
    keep: tuple[Seat, ...] = ()


class MakeRoom(Struct, frozen=True, gc=False, tag=True):
    """Preempt these victims and claim these seats for the gang until they are free. All or nothing.

    ``out_of_turn_until_ms``: as of ``Place``.
    """

    gang: str
    attempt: int
    seats: tuple[Seat, ...]
    victims: tuple[Victim, ...]
    out_of_turn_until_ms: int = 0


class Repair(Struct, frozen=True, gc=False, tag=True):
    """Continue a broken gang as a new attempt on these seats."""

    gang: str
    attempt: int
    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()


class Grow(Struct, frozen=True, gc=False, tag=True):
    """Restart an elastic gang with these seats: those it has and more."""

    gang: str
    attempt: int
    seats: tuple[Seat, ...]


class Evict(Struct, frozen=True, gc=False, tag=True):
    """Evict a gang without a beneficiary."""

    gang: str
    attempt: int
    cause: Cause
    failure: FailureClass | None = None


class DropClaim(Struct, frozen=True, gc=False, tag=True):
    """Drop the claim of a gang: it can no longer get all of the seats."""

    gang: str
    attempt: int


Decision = Place | MakeRoom | Repair | Grow | Evict | DropClaim


class PartKept(Struct, frozen=True, gc=False):
    """A part of the limit of a queue, or of a user in it, is kept for this gang from a time on. ``queue`` is empty for
    the whole cluster, ``user`` for a limit of the queue."""

    gang: str
    queue: str
    user: str
    at_ms: int
    is_guarantee: bool = False  # a part of the guarantee of the queue, and not of its limit


class NoSeats(Enum):
    """A gang waits because no seats were found for it."""

    NONE_FREE = "none_free"
    NONE_CLOSE = "none_close"  # none in the domain that it prefers, for which it may still wait
    ALL_RESERVED = "all_reserved"  # those that are free are reserved for other gangs


class Behind(Struct, frozen=True, gc=False):
    """A gang waits because gangs are served strictly in order and this one, which is before it, waits."""

    gang: str


#: Why a gang waits, as it was decided: a bound of its queue or user; a part of a bound that is kept for another gang;
#: the order; or seats.
Verdict = Shortfall | PartKept | Behind | NoSeats


class Why(Protocol):
    """The verdict on a gang that waits; None if it was not recorded. Valid until the state changes."""

    def __call__(self, gang: Gang, /) -> Verdict | None: ...


class Plan(Struct, frozen=True, gc=False):
    """All decisions of one planning cycle. ``look_again_ms``: when another plan is due even if nothing is reported.

    ``keeps``: the reservations are durable, so later plans must respect them; earlier ones not among them are
    withdrawn. ``remembers``: the same, but later plans need only know which gangs have a reservation, and not for when.
    ``parts``: what is kept within limits, if that delayed a gang. ``moved``: reservations of earlier plans that begin
    later now, or were withdrawn, and for which gangs. ``why``: why the others wait; not sent with the plan.
    """

    at_ms: int
    decisions: tuple[Decision, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    look_again_ms: int | None = None
    keeps: bool = False
    parts: tuple[PartKept, ...] = ()
    remembers: bool = False
    moved: tuple[StartMoved, ...] = ()
    why: Why | None = None
