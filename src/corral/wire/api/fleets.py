"""Fleets: nodes from providers, wanted and present.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from corral.wire.api.answers import Answer, Body
from corral.wire.api.constraints import Cost, IdleMs, LastsMs, Nodes

PilotWord = Literal["ordered", "waiting", "started", "ended"]


class ShapeBody(Body, frozen=True):
    """The resources of a node of a fleet. ``gpus`` as 8xH100."""

    gpus: str = ""
    cpu_milli: int | None = None
    memory_mib: int | None = None


class FleetBody(Body, frozen=True):
    """The settings of a fleet; its name is in the path. ``on``: the provider, with its ``settings``.

    From ``nodes_min`` to ``nodes_max`` nodes, by demand; a node that was idle for ``idle_ms`` is given back if there
    are more than the minimum. ``lasts_ms``: how long a node is requested for. ``price_milli``: price of a node per
    hour, in thousandths of a currency unit; ``cost_max_milli``: most that the fleet may cost in total.
    """

    on: str
    settings: dict[str, Any] = field(default_factory=dict)
    nodes_min: Nodes = 1
    nodes_max: Nodes = 1
    lasts_ms: LastsMs | None = None
    idle_ms: IdleMs = 600_000
    shape: ShapeBody | None = None
    price_milli: Cost = 0
    cost_max_milli: Cost | None = None


class ScaleBody(Body, frozen=True):
    """What is not given does not change."""

    nodes_min: Nodes | None = None
    nodes_max: Nodes | None = None
    idle_ms: IdleMs | None = None
    cost_max_milli: Cost | None = None


class PilotView(Answer, frozen=True):
    """What a provider runs for one node. Its name is that of the node. ``where``: as the provider names it."""

    name: str
    phase: PilotWord
    where: str
    why: str
    ordered_ms: int
    joined_ms: int | None
    until_ms: int | None
    leaving: bool
    node: bool  # whether its node has joined


class FleetView(Answer, frozen=True):
    """A fleet. ``trouble``: the last error of its provider. ``wanted``: number of nodes it should have now."""

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
