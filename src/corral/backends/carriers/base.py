"""What Corral needs of an engine that gives machines: let pilots start there, see them, let them go.

A pilot is whatever the engine runs for us on one node (a job of Slurm, an actor of Ray, a unit of systemd): it starts
one agent, which joins the server with a token of its own, under the pilot's name. What a carrier says of a pilot is a
hint. Whether a node is there is decided by its lease, and nobody here knows of leases, fleets or tasks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from corral.core.fleets.fleets import PilotPhase

__all__ = ["PILOT", "Carrier", "CarrierAway", "CarrierRefused", "PilotOrder", "PilotPhase", "Sighting", "raise_any"]

#: Names of pilots: they become names of nodes, jobs and folders.
PILOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class CarrierAway(Exception):
    """The engine cannot be asked at present: nothing is known, neither that something happened nor that it did not.
    Ask again, in the same words."""


class CarrierRefused(Exception):
    """The engine has answered, and says no: what it speaks of was not acquired. What, why, and what to do about it."""


def raise_any(faults: Sequence[CarrierAway | CarrierRefused]) -> None:
    """What is raised where several things were asked for: `CarrierAway` if of any nobody knows, else `CarrierRefused`;
    each reason once. Without faults, nothing."""
    for kind in (CarrierAway, CarrierRefused):
        reasons = dict.fromkeys(str(fault) for fault in faults if isinstance(fault, kind))
        if reasons:
            raise kind("; ".join(reasons))


class PilotOrder(Struct, frozen=True, gc=False, kw_only=True):
    """Everything a pilot needs. ``pilot``: our own id, the same however often it is asked for; also the node's name.

    ``token`` is good for joining once, as this node. It may differ when the same pilot is asked for again; whichever
    reached the machine is good.
    """

    pilot: str
    urls: tuple[str, ...]
    token: str
    cafile: str = ""  # on the machine: the authority that vouches for the server
    lasts_ms: int | None = None  # for so long it is asked for, where the engine wants to know

    def __repr__(self) -> str:
        return f"PilotOrder(pilot={self.pilot!r}, urls={self.urls!r})"  # a token has no business in a log


class Sighting(Struct, frozen=True, gc=False, kw_only=True):
    """What the engine says of a pilot. ``where``: in its own words, as "job 17 on gpu3". ``left_ms``: after so long it
    takes the machine back; None: there is no end that it knows of. ``why``: why it waits, or why it is over."""

    pilot: str
    phase: PilotPhase
    where: str = ""
    left_ms: int | None = None
    why: str = ""


class Carrier(Protocol):
    """One engine, as one fleet uses it. Calls may take long and are made off the server's thread, one at a time. All
    of them raise `CarrierAway` when nobody knows whether they did anything; all of them may be repeated."""

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        """Let there be these pilots. One that is there already, in whatever phase, is left as it is: however often it
        is asked for, also by another server, and whatever became of earlier answers, there is never a second one. Once
        this has returned, `look` sees them.

        All are tried, unless what became of one holds for those after it. What could be had is had, and seen by `look`,
        also when this raises because of others: `CarrierAway` if of any nobody knows, else `CarrierRefused` if any was
        refused, with the reasons. Either way all of them may be asked for again."""
        ...

    def look(self, pilots: Sequence[str]) -> Sequence[Sighting]:
        """What there is of these pilots; of one that never was, or was forgotten, nothing. No others are told of."""
        ...

    def release(self, pilot: str) -> None:
        """It shall end: its agent is told so, and has the time to leave in order that the engine gives. One that is
        over, or never was, is no fault."""
        ...

    def close(self) -> None:
        """Nothing more is asked. Pilots go on."""
        ...
