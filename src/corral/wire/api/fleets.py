"""Fleets: machines that engines lend, what is wanted of them, and what has come of it.

Shapes and units only: nothing of HTTP, of rights, or of how an answer is found.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from corral.wire.api.answers import Answer, Body

PilotWord = Literal["ordered", "waiting", "started", "ended"]


class ShapeBody(Body, frozen=True):
    """What a node of a fleet brings. ``gpus`` as 8xH100."""

    gpus: str = ""
    cpu_milli: int | None = None
    memory_mib: int | None = None


class FleetBody(Body, frozen=True):
    """What is wanted of a fleet; its name is in the path. ``on``: which carrier, with ``settings`` of its own.

    From ``nodes_min`` to ``nodes_max`` nodes, as work asks for them; one that had nothing to do for ``idle_ms`` goes
    back if it is beyond the minimum. ``lasts_ms``: for how long a node is asked for. ``price_milli``: of a node for an
    hour, in thousandths of whatever it is paid in; ``cost_max_milli``: what the fleet may cost in all.
    """

    on: str
    settings: dict[str, Any] = field(default_factory=dict)
    nodes_min: int = 1
    nodes_max: int = 1
    lasts_ms: int | None = None
    idle_ms: int = 600_000
    shape: ShapeBody | None = None
    price_milli: int = 0
    cost_max_milli: int | None = None


class ScaleBody(Body, frozen=True):
    """What is not stated stays as it is."""

    nodes_min: int | None = None
    nodes_max: int | None = None
    idle_ms: int | None = None
    cost_max_milli: int | None = None


class PilotView(Answer, frozen=True):
    """What an engine runs for one node. Its name is that of the node. ``where``: in words of the engine."""

    name: str
    phase: PilotWord
    where: str
    why: str
    ordered_ms: int
    joined_ms: int | None
    until_ms: int | None
    leaving: bool
    node: bool  # whether its node is there


class FleetView(Answer, frozen=True):
    """A fleet. ``trouble``: what its engine does not do, and why. ``wanted``: nodes that should be there now."""

    name: str
    owner: str
    on: str
    settings: dict[str, Any]
    nodes_min: int
    nodes_max: int
    wanted: int
    joined: int
    lasts_ms: int | None
    idle_ms: int
    leaving: bool
    trouble: str
    price_milli: int
    cost_milli: int
    cost_max_milli: int | None
    pilots: tuple[PilotView, ...]


class FleetList(Answer, frozen=True):
    fleets: tuple[FleetView, ...]
