"""What people ask for about fleets: checked against what there is and turned into events, or refused with a reason.

Who may ask is not decided here, nor what a carrier makes of its settings.
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
    """Make a fleet, or want something else of one. What it is carried by does not change. ``drawn``: a word that nobody
    else has, in case that this is the first."""
    fault = fault_of(spec)
    if fault is not None:
        return fault
    known = fleets.fleets.get(spec.name)
    if known is not None and known.is_recalled:
        hint = f"wait until corral fleet list no longer shows it, or take another name than {spec.name}"
        return Refusal("fleet_leaving", f"fleet {spec.name} is being given back", hint)
    if known is not None and known.spec.kind != spec.kind:
        hint = "take another name, or give this one back first: corral fleet down"
        return Refusal("other_carrier", f"fleet {spec.name} is carried by {known.spec.kind}", hint, "on")
    if known is not None and known.spec == spec:
        return []
    cluster = "" if fleets.cluster else drawn
    return [f.FleetSet(now_ms, spec, owner if known is None else known.owner, cluster)]


def fault_of(spec: FleetSpec) -> Refusal | None:
    if not FLEET.fullmatch(spec.name):
        hint = "letters, digits and . _ -, at most 48, beginning and ending with a letter or digit"
        return Refusal("bad_name", f"{spec.name[:80]!r} is not a name for a fleet", hint, "name")
    if not 0 <= spec.nodes_min <= spec.nodes_max <= NODES_MAX or spec.nodes_max == 0:
        why = f"from {spec.nodes_min} to {spec.nodes_max} nodes is no range"
        return Refusal("bad_nodes", why, f"0 <= least <= most, and most is from 1 to {NODES_MAX:,}", "nodes")
    if not IDLE_MS_MIN <= spec.idle_ms <= IDLE_MS_MAX:
        return Refusal("bad_idle", "a node goes back after 1 s to 30 days without work", field="idle_ms")
    if spec.lasts_ms is not None and not LASTS_MS_MIN <= spec.lasts_ms <= _AMOUNT_MAX:
        return Refusal("bad_time", "a node is asked for for a minute or longer", field="lasts_ms")
    if not 0 <= spec.price_milli <= _AMOUNT_MAX or not 0 <= (spec.cost_max_milli or 0) <= _AMOUNT_MAX:
        return Refusal("bad_price", "prices and costs are not negative", field="price_milli")
    if spec.cost_max_milli is not None and not spec.price_milli:
        return Refusal("no_price", "costs are bounded, but nobody said what a node costs", "state a price too", "price")
    return None


def recall_fleet(fleets: Fleets, name: str, now_ms: int) -> Answer:
    """Give all its nodes back. Asking twice does no harm."""
    fleet = fleets.fleets.get(name)
    if fleet is None:
        return Refusal("no_such_fleet", f"there is no fleet {name[:80]!r}")
    return [] if fleet.is_recalled else [f.FleetRecalled(now_ms, name)]
