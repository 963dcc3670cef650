"""Fleets and their pilots, folded from events of their own: what is wanted, what was asked for, what was seen of it.

Knows nothing of jobs, of how an engine is spoken to, or of what a carrier's settings mean. That a pilot was asked for
is written down before anybody asks, so that whatever becomes of the answer, its name is known.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from corral.core.cluster.resources import Amounts, Gpu

HOUR_MS = 3_600_000


class PilotPhase(StrEnum):
    """What an engine says of a pilot."""

    WAITING = "waiting"  # the engine has it, and has not started it
    STARTED = "started"
    ENDED = "ended"  # it is over, or the engine knows nothing of it any more


class NodeShape(Struct, frozen=True, gc=False):
    """What a node of a fleet brings."""

    gpus: tuple[Gpu, ...] = ()
    amounts: Amounts = ()


class FleetSpec(Struct, frozen=True, gc=False, kw_only=True):
    """What is wanted. ``kind``: which carrier; ``settings``: for it alone. From ``nodes_min`` to ``nodes_max`` nodes as
    work asks for them; a node beyond the minimum that had nothing to do for ``idle_ms`` goes back. ``shape``: what a
    node brings, if it is known beforehand. ``price_milli``: what a node costs in an hour, in thousandths of whatever
    it is paid in; ``cost_max_milli``: the fleet may cost no more than that in all."""

    name: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    nodes_min: int = 1
    nodes_max: int = 1
    lasts_ms: int | None = None
    idle_ms: int = 600_000
    shape: NodeShape | None = None
    price_milli: int = 0
    cost_max_milli: int | None = None


class _Event(Struct, frozen=True, gc=False, tag=True):
    at_ms: int


class _FleetEvent(_Event, frozen=True, gc=False, tag=True):
    fleet: str


class FleetSet(_Event, frozen=True, gc=False, tag=True):
    """A fleet was made, or something else is wanted of it."""

    spec: FleetSpec
    owner: str
    cluster: str = ""  # with the first fleet: a word by which engines tell our pilots from those of other servers


class FleetRecalled(_FleetEvent, frozen=True, gc=False, tag=True):
    """Nothing is wanted of it any more: its nodes go back, each when its work has left it."""


class FleetRemoved(_FleetEvent, frozen=True, gc=False, tag=True):
    """All its pilots are over."""


class FleetTroubled(_FleetEvent, frozen=True, gc=False, tag=True):
    """What its engine does not do, and why; empty: it does what it should again."""

    why: str = ""


class _PilotEvent(_FleetEvent, frozen=True, gc=False, tag=True):
    pilot: str


class PilotOrdered(_PilotEvent, frozen=True, gc=False, tag=True):
    """It will be asked for. Its number is never given again."""


class PilotSeen(_PilotEvent, frozen=True, gc=False, tag=True):
    """The engine has it. ``until_ms``: when it takes the machine back, if that is known."""

    phase: PilotPhase
    where: str = ""
    until_ms: int | None = None
    why: str = ""


class PilotJoined(_PilotEvent, frozen=True, gc=False, tag=True):
    """Its node is there, and this is what it brings."""

    shape: NodeShape


class PilotRecalled(_PilotEvent, frozen=True, gc=False, tag=True):
    """It is not wanted any more: its node is emptied, then it goes back."""

    why: str = ""


class PilotEnded(_PilotEvent, frozen=True, gc=False, tag=True):
    """Nothing is left of it: neither a node nor anything that the engine would still start."""

    why: str = ""


class FarewellGiven(_Event, frozen=True, gc=False, tag=True):
    """The server stops, and leaves every node a last lease of this length: whoever comes next gives up no node that it
    has not heard of before that could have ended."""

    lease_ms: int


FleetEvent = (
    FleetSet
    | FarewellGiven
    | FleetRecalled
    | FleetRemoved
    | FleetTroubled
    | PilotOrdered
    | PilotSeen
    | PilotJoined
    | PilotRecalled
    | PilotEnded
)


class Pilot(Struct):
    """``phase`` None: nobody knows yet whether the engine has it."""

    name: str
    ordered_ms: int
    phase: PilotPhase | None = None
    where: str = ""
    until_ms: int | None = None
    why: str = ""
    started_ms: int | None = None
    joined_ms: int | None = None
    recalled_ms: int | None = None


class Fleet(Struct):
    """``spent_node_ms``: for how long nodes were had that are gone by now. ``shape``: of the last node that joined."""

    spec: FleetSpec
    owner: str
    made_ms: int
    pilots: dict[str, Pilot] = field(default_factory=dict)
    is_recalled: bool = False
    trouble: str = ""
    spent_node_ms: int = 0
    shape: NodeShape | None = None
    last_end: str = ""  # how the last pilot that nobody had recalled came to its end
    last_end_ms: int = 0
    failures: int = 0  # so many of them in a row, without one that joined

    @property
    def wanted(self) -> list[Pilot]:
        """Those that are there, or are to be."""
        return [pilot for pilot in self.pilots.values() if pilot.recalled_ms is None]

    def cost_milli(self, now_ms: int) -> int:
        """What it has cost so far."""
        held = sum(now_ms - pilot.started_ms for pilot in self.pilots.values() if pilot.started_ms is not None)
        return (self.spent_node_ms + held) * self.spec.price_milli // HOUR_MS


class Fleets:
    """The fold of all fleet events."""

    def __init__(self) -> None:
        self.fleets: dict[str, Fleet] = {}
        self.by_node: dict[str, str] = {}  # node -> the fleet it came with
        self.numbers: dict[str, int] = {}  # fleet -> how many pilots it ever had, also before it was made anew
        self.cluster = ""
        self.farewell: tuple[int, int] = (0, 0)  # when a server last stopped in order, and the lease it left behind

    def apply(self, event: FleetEvent) -> None:
        _FOLDS[type(event)](self, event)

    def pilot(self, node: str) -> Pilot | None:
        """The pilot of a node, if it has one."""
        fleet = self.fleets.get(self.by_node.get(node, ""))
        return None if fleet is None else fleet.pilots.get(node)

    def end_ms(self, node: str, now_ms: int) -> int | None:
        """When a machine that joins now is taken away, as far as is known: not later than it was asked for."""
        pilot = self.pilot(node)
        if pilot is None or pilot.until_ms is not None:
            return None if pilot is None else pilot.until_ms
        lasts_ms = self.fleets[self.by_node[node]].spec.lasts_ms
        return None if lasts_ms is None else now_ms + lasts_ms

    def next_pilot(self, fleet: str, ahead: int = 0) -> str:
        """A name that no pilot ever had; ``ahead`` more were given just now."""
        return f"{fleet}-{self.numbers.get(fleet, 0) + ahead + 1}"


def _set(fleets: Fleets, event: FleetSet) -> None:
    known = fleets.fleets.get(event.spec.name)
    fleets.cluster = event.cluster or fleets.cluster
    if known is None:
        fleets.fleets[event.spec.name] = Fleet(event.spec, event.owner, event.at_ms)
    else:
        known.spec, known.owner = event.spec, event.owner
        known.failures = 0  # whatever was wrong may be what has changed


def _farewell_given(fleets: Fleets, event: FarewellGiven) -> None:
    fleets.farewell = (event.at_ms, event.lease_ms)


def _recalled(fleets: Fleets, event: FleetRecalled) -> None:
    fleets.fleets[event.fleet].is_recalled = True


def _removed(fleets: Fleets, event: FleetRemoved) -> None:
    fleet = fleets.fleets.pop(event.fleet)
    assert not fleet.pilots, f"fleet {event.fleet} still has pilots"


def _troubled(fleets: Fleets, event: FleetTroubled) -> None:
    fleets.fleets[event.fleet].trouble = event.why


def _ordered(fleets: Fleets, event: PilotOrdered) -> None:
    fleet = fleets.fleets[event.fleet]
    fleet.pilots[event.pilot] = Pilot(event.pilot, event.at_ms)
    fleets.numbers[event.fleet] = fleets.numbers.get(event.fleet, 0) + 1
    fleets.by_node[event.pilot] = event.fleet


def _seen(fleets: Fleets, event: PilotSeen) -> None:
    pilot = fleets.fleets[event.fleet].pilots[event.pilot]
    pilot.phase, pilot.where, pilot.until_ms, pilot.why = event.phase, event.where, event.until_ms, event.why
    if event.phase is PilotPhase.STARTED and pilot.started_ms is None:
        pilot.started_ms = event.at_ms


def _joined(fleets: Fleets, event: PilotJoined) -> None:
    fleet = fleets.fleets[event.fleet]
    pilot = fleet.pilots[event.pilot]
    pilot.joined_ms = event.at_ms
    pilot.started_ms = event.at_ms if pilot.started_ms is None else pilot.started_ms
    fleet.shape, fleet.failures = event.shape, 0


def _pilot_recalled(fleets: Fleets, event: PilotRecalled) -> None:
    fleets.fleets[event.fleet].pilots[event.pilot].recalled_ms = event.at_ms


def _ended(fleets: Fleets, event: PilotEnded) -> None:
    fleet = fleets.fleets[event.fleet]
    pilot = fleet.pilots.pop(event.pilot)
    del fleets.by_node[event.pilot]
    if pilot.started_ms is not None:
        fleet.spent_node_ms += event.at_ms - pilot.started_ms
    if pilot.recalled_ms is None:
        fleet.last_end, fleet.last_end_ms = event.why, event.at_ms
        fleet.failures += pilot.joined_ms is None


_FOLDS: dict[type, Callable[[Fleets, Any], None]] = {
    FleetSet: _set,
    FarewellGiven: _farewell_given,
    FleetRecalled: _recalled,
    FleetRemoved: _removed,
    FleetTroubled: _troubled,
    PilotOrdered: _ordered,
    PilotSeen: _seen,
    PilotJoined: _joined,
    PilotRecalled: _pilot_recalled,
    PilotEnded: _ended,
}
