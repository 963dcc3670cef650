"""The interface to a provider of machines: start pilots there, list them, release them.

A pilot is what the provider runs for us on one node (a Slurm job, a Ray actor, a systemd unit). It starts one agent,
which joins the server with its own token, under the pilot's name. What a provider reports about a pilot is a hint: the
lease decides whether a node is there. Does not know leases, fleets or tasks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from corral.core.fleets.fleets import PilotPhase as PilotPhase

#: Names of pilots. They become names of nodes, jobs and directories.
PILOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ProviderUnavailable(Exception):
    """The provider does not answer, so it is unknown whether the request was executed. Repeat it unchanged."""


class ProviderRefused(Exception):
    """The provider refused: nothing was acquired. Says what, why, and what to do."""


def raise_any(faults: Sequence[ProviderUnavailable | ProviderRefused]) -> None:
    """Raise for several requests: `ProviderUnavailable` if the outcome of any is unknown, else `ProviderRefused`, with
    each reason once. Does nothing without faults."""
    for kind in (ProviderUnavailable, ProviderRefused):
        reasons = dict.fromkeys(str(fault) for fault in faults if isinstance(fault, kind))
        if reasons:
            raise kind("; ".join(reasons))


class PilotOrder(Struct, frozen=True, gc=False, kw_only=True):
    """Everything that a pilot needs. ``pilot``: our own id, the same in every request for it; also the node's name.

    ``token`` can be used to join once, as this node. It may differ when the same pilot is requested again; whichever
    reached the machine is valid.
    """

    pilot: str
    urls: tuple[str, ...]
    token: str
    cafile: str = ""  # on the machine: the certificate authority of the server
    lasts_ms: int | None = None  # how long it is requested for, if the provider wants to know

    def __repr__(self) -> str:
        return f"PilotOrder(pilot={self.pilot!r}, urls={self.urls!r})"  # the token must not get into a log


class PilotStatus(Struct, frozen=True, gc=False, kw_only=True):
    """What the provider reports about a pilot. ``where``: in its own words, such as "job 17 on gpu3". ``left_ms``: the
    time until it takes the machine back; None: there is no known end. ``why``: why it waits, or why it has ended."""

    pilot: str
    phase: PilotPhase
    where: str = ""
    left_ms: int | None = None
    why: str = ""


class Provider(Protocol):
    """One provider, as one fleet uses it. Calls may take long and are made off the server's thread, one at a time. All
    raise `ProviderUnavailable` if it is unknown whether they did anything, and all may be repeated."""

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        """Request these pilots. One that exists already, in whatever phase, is left as it is: however often it is
        requested, also by another server, and whether or not earlier answers were lost, there is never a second one.
        After this has returned, `look` reports them.

        All are tried, unless the fault of one also holds for those after it. `look` reports those that were acquired,
        also if this raises because of others: `ProviderUnavailable` if the outcome of any is unknown, else
        `ProviderRefused` if any was refused, with the reasons. Either way all of them may be requested again.
        """

    def look(self, pilots: Sequence[str]) -> Sequence[PilotStatus]:
        """The status of these pilots, and of no others. One that never existed, or was forgotten, is left out."""

    def release(self, pilot: str) -> None:
        """End a pilot. Its agent gets SIGTERM and the grace time of the provider. It is no error if the pilot
        has ended or never existed."""

    def close(self) -> None:
        """There will be no more calls. Pilots keep running."""
