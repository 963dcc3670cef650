"""Commands on fleets: each is checked and becomes events, or a refusal that says why.

Rights are not decided here, nor what the settings of a provider mean.
"""

from __future__ import annotations

import re

from corral.core.fleets import fleets as f
from corral.core.fleets.fleets import FleetEvent, Fleets, FleetSpec
from corral.core.intake.refusal import Refusal

Answer = list[FleetEvent] | Refusal

#: The name of a fleet begins the names of its nodes.
FLEET = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,46}[A-Za-z0-9])?")
NODES_MAX = 10_000
IDLE_MS_MIN, IDLE_MS_MAX = 1_000, 30 * 86_400_000
LASTS_MS_MIN = 60_000
_AMOUNT_MAX = 1 << 53


def set_fleet(fleets: Fleets, spec: FleetSpec, owner: str, drawn: str, now_ms: int) -> Answer:
    """Create or change a fleet. Its provider cannot change. ``drawn``: a random id of the cluster, used with the first
    fleet."""
    fault = fault_of(spec)
    if fault is not None:
        return fault
    known = fleets.fleets.get(spec.name)
    if known is not None and known.is_recalled:
        hint = f"wait until corral fleet list no longer shows it, or use another name than {spec.name}"
        return Refusal("fleet_leaving", f"fleet {spec.name} is returning its nodes", hint)
    if known is not None and known.spec.kind != spec.kind:
        hint = "use another name, or remove this fleet first: corral fleet down"
        return Refusal("other_provider", f"fleet {spec.name} exists on {known.spec.kind}", hint, "on")
    if known is not None and known.spec == spec:
        return []
    cluster = "" if fleets.cluster else drawn
    return [f.FleetSet(now_ms, spec, owner if known is None else known.owner, cluster)]


def fault_of(spec: FleetSpec) -> Refusal | None:
    if not FLEET.fullmatch(spec.name):
        hint = "use up to 48 letters, digits and . _ -; begin and end with a letter or digit"
        return Refusal("bad_name", f"{spec.name[:80]!r} is not a valid fleet name", hint, "name")
    if not 0 <= spec.nodes_min <= spec.nodes_max <= NODES_MAX or spec.nodes_max == 0:
        why = f"{spec.nodes_min} to {spec.nodes_max} nodes is not a valid range"
        return Refusal("bad_nodes", why, f"use 0 <= minimum <= maximum, and a maximum from 1 to {NODES_MAX:,}", "nodes")
    if not IDLE_MS_MIN <= spec.idle_ms <= IDLE_MS_MAX:
        return Refusal("bad_idle", f"the idle time {spec.idle_ms} ms is out of range", "use 1 s to 30 days", "idle_ms")
    if spec.lasts_ms is not None and not LASTS_MS_MIN <= spec.lasts_ms <= _AMOUNT_MAX:
        why = f"nodes cannot be requested for {spec.lasts_ms} ms"
        return Refusal("bad_time", why, "use one minute or more", "lasts_ms")
    if not 0 <= spec.price_milli <= _AMOUNT_MAX or not 0 <= (spec.cost_max_milli or 0) <= _AMOUNT_MAX:
        return Refusal("bad_price", "a price or cost is negative or too large", field="price_milli")
    if spec.cost_max_milli is not None and not spec.price_milli:
        return Refusal("no_price", "there is a cost limit, but no price of a node", "set a price, too", "price")
    return None


def recall_fleet(fleets: Fleets, name: str, now_ms: int) -> Answer:
    """Return all nodes of a fleet. Doing it twice is not an error."""
    fleet = fleets.fleets.get(name)
    if fleet is None:
        return Refusal("no_such_fleet", f"there is no fleet {name[:80]!r}")
    return [] if fleet.is_recalled else [f.FleetRecalled(now_ms, name)]
