"""Fleets and their pilots, folded from events: what is wanted, what was requested, and what providers report.

Knows nothing about jobs, how a provider is called, or what its settings mean. A request for a pilot is recorded before
it is made, so that the name of the pilot is known even if the answer is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from corral.core.cluster.resources import Amounts, Gpu

HOUR_MS = 3_600_000


class PilotPhase(StrEnum):
    """The state of a pilot at its provider."""

    WAITING = "waiting"  # queued at the provider
    STARTED = "started"
    ENDED = "ended"  # ended, or unknown to the provider


class NodeShape(Struct, frozen=True, gc=False):
    """The resources of a node of a fleet."""

    gpus: tuple[Gpu, ...] = ()
    amounts: Amounts = ()


class FleetSpec(Struct, frozen=True, gc=False, kw_only=True):
    """The specification of a fleet. ``kind``: the provider; ``settings``: for the provider. ``nodes_min`` to
    ``nodes_max`` nodes, by demand; a node beyond the minimum that is idle for ``idle_ms`` is returned. ``shape``: the
    resources of a node, if known in advance. ``price_milli``: price of a node per hour, in thousandths of the currency;
    ``cost_max_milli``: total cost limit of the fleet."""

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
    """A fleet was created or changed."""

    spec: FleetSpec
    owner: str
    cluster: str = ""  # with the first fleet: an id that distinguishes our pilots from those of other servers


class FleetRecalled(_FleetEvent, frozen=True, gc=False, tag=True):
    """The fleet is being removed: its nodes are returned, each when its jobs have left it."""


class FleetRemoved(_FleetEvent, frozen=True, gc=False, tag=True):
    """All its pilots have ended, and the fleet was removed."""


class FleetTroubled(_FleetEvent, frozen=True, gc=False, tag=True):
    """A problem with the provider of the fleet; empty: the problem is over."""

    why: str = ""


class _PilotEvent(_FleetEvent, frozen=True, gc=False, tag=True):
    pilot: str


class PilotOrdered(_PilotEvent, frozen=True, gc=False, tag=True):
    """A pilot will be requested. Its number is never used again."""


class PilotSeen(_PilotEvent, frozen=True, gc=False, tag=True):
    """The provider reported the pilot. ``until_ms``: when the provider withdraws the node, if known."""

    phase: PilotPhase
    where: str = ""
    until_ms: int | None = None
    why: str = ""


class PilotJoined(_PilotEvent, frozen=True, gc=False, tag=True):
    """The node of the pilot joined with these resources."""

    shape: NodeShape


class PilotRecalled(_PilotEvent, frozen=True, gc=False, tag=True):
    """The pilot is being returned: its node is drained first."""

    why: str = ""


class PilotEnded(_PilotEvent, frozen=True, gc=False, tag=True):
    """The pilot has ended: there is no node, and the provider will not start one."""

    why: str = ""


class FarewellGiven(_Event, frozen=True, gc=False, tag=True):
    """The server stops and gives every node a last lease of this length: the next server declares no node lost before
    that lease could have ended."""

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
    """A pilot. ``phase`` None: it is unknown whether the provider has it."""

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
    """A fleet. ``spent_node_ms``: total time of ended pilots. ``shape``: of the last node that joined."""

    spec: FleetSpec
    owner: str
    made_ms: int
    pilots: dict[str, Pilot] = field(default_factory=dict)
    is_recalled: bool = False
    trouble: str = ""
    spent_node_ms: int = 0
    shape: NodeShape | None = None
    last_end: str = ""  # why the last pilot ended that was not recalled
    last_end_ms: int = 0
    failures: int = 0  # consecutive pilots that ended without joining

    @property
    def wanted(self) -> list[Pilot]:
        """Pilots that are not being returned."""
        return [pilot for pilot in self.pilots.values() if pilot.recalled_ms is None]

    def cost_milli(self, now_ms: int) -> int:
        """The cost so far."""
        held = sum(now_ms - pilot.started_ms for pilot in self.pilots.values() if pilot.started_ms is not None)
        return (self.spent_node_ms + held) * self.spec.price_milli // HOUR_MS


class Fleets:
    """The fold of all fleet events."""

    def __init__(self) -> None:
        self.fleets: dict[str, Fleet] = {}
        self.by_node: dict[str, str] = {}  # node -> the fleet it came with
        self.numbers: dict[str, int] = {}  # fleet -> number of pilots so far, also under an earlier fleet of the name
        self.cluster = ""
        self.farewell: tuple[int, int] = (0, 0)  # when a server last stopped regularly, and the last lease it gave

    def apply(self, event: FleetEvent) -> None:
        _FOLDS[type(event)](self, event)

    def pilot(self, node: str) -> Pilot | None:
        """The pilot of a node, if it has one."""
        fleet = self.fleets.get(self.by_node.get(node, ""))
        return None if fleet is None else fleet.pilots.get(node)

    def end_ms(self, node: str, now_ms: int) -> int | None:
        """When a node that joins now will be withdrawn, if known: at the latest after the requested time."""
        pilot = self.pilot(node)
        if pilot is None or pilot.until_ms is not None:
            return None if pilot is None else pilot.until_ms
        lasts_ms = self.fleets[self.by_node[node]].spec.lasts_ms
        return None if lasts_ms is None else now_ms + lasts_ms

    def next_pilot(self, fleet: str, ahead: int = 0) -> str:
        """A name that no pilot ever had, skipping ``ahead`` names."""
        return f"{fleet}-{self.numbers.get(fleet, 0) + ahead + 1}"


def _set(fleets: Fleets, event: FleetSet) -> None:
    known = fleets.fleets.get(event.spec.name)
    fleets.cluster = event.cluster or fleets.cluster
    if known is None:
        fleets.fleets[event.spec.name] = Fleet(event.spec, event.owner, event.at_ms)
    else:
        known.spec, known.owner = event.spec, event.owner
        known.failures = 0  # the change may have solved the problem


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
    pilot.phase = event.phase
    pilot.where = event.where
    pilot.until_ms = event.until_ms
    pilot.why = event.why
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
