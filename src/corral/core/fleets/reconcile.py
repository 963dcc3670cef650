"""Computes the actions for a fleet from its specification, the reports of its provider and its nodes. Pure.

Level-triggered: an action that was not done, or may not have been, is repeated the next time. A pilot is ordered,
acquired, joined; recalled, drained, released, removed. The report of a provider that a pilot is lost only speeds up its
removal: as long as its node has a lease, the pilot exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from corral.core.fleets import fleets as f
from corral.core.fleets.fleets import Fleet, FleetEvent, NodeShape, Pilot, PilotPhase

#: The wait after a pilot that ended without joining, doubled each time.
BACKOFF_MS, BACKOFF_MS_MAX = 5_000, 600_000
#: A provider that does not know a pilot for this time has lost it.
ABSENT_MS = 10_000
#: A pilot that was started and has not joined, or whose node is lost, is given up after this time.
SILENT_MS = 600_000
#: A node that will be withdrawn is replaced this long before, if it is still wanted; for short allocations, when this
#: part (1/4) of the time is left.
LEAD_MS, LEAD_PART = 60_000, 4


class PilotNode(Struct, frozen=True):
    """The node of a pilot in the cluster. ``since_ms``: since when it is lost or idle."""

    is_lost: bool = False
    is_busy: bool = False
    is_drained: bool = False
    since_ms: int = 0
    shape: NodeShape = NodeShape()


class Actions(Struct):
    """The actions, in this order. ``drain``, ``remove``: nodes; ``acquire``, ``release``: pilots."""

    events: list[FleetEvent] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)
    acquire: list[str] = field(default_factory=list)
    release: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)


def reconcile(
    fleet: Fleet,
    names: Sequence[str],
    nodes: Mapping[str, PilotNode],
    target: int,
    absent_since_ms: Mapping[str, int],
    now_ms: int,
    held: int | None = None,
) -> Actions:
    """Compute the actions. ``names``: for new pilots, as many as may be needed. ``target``: the wanted number of nodes.
    ``held``: the largest recent target; pilots requested for it are kept. ``absent_since_ms``: pilots that the provider
    does not know, since when."""
    actions = Actions()
    name = fleet.spec.name
    over: set[str] = set()
    for pilot in fleet.pilots.values():
        node = nodes.get(pilot.name)
        if node is not None and not node.is_lost and pilot.joined_ms is None:
            actions.events.append(f.PilotJoined(now_ms, name, pilot.name, node.shape))
        why = _why_over(pilot, node, absent_since_ms.get(pilot.name), now_ms)
        if why is not None:
            over.add(pilot.name)
            if node is not None:
                actions.remove.append(pilot.name)
            actions.events.append(f.PilotEnded(now_ms, name, pilot.name, why))
    left = [pilot for pilot in fleet.pilots.values() if pilot.name not in over]
    recalled = _recall(fleet, left, nodes, target, max(target, held or 0), now_ms)
    actions.events += [f.PilotRecalled(now_ms, name, each, why) for each, why in recalled.items()]
    for pilot in left:
        if pilot.recalled_ms is not None or pilot.name in recalled:
            _drain_and_release(actions, pilot, nodes.get(pilot.name))
        elif pilot.phase is None:
            actions.acquire.append(pilot.name)
    staying = [pilot for pilot in left if pilot.recalled_ms is None and pilot.name not in recalled]
    has_failed = any(fleet.pilots[each].recalled_ms is None and fleet.pilots[each].joined_ms is None for each in over)
    fresh = [] if has_failed else list(names[: _missing(fleet, staying, target, now_ms)])
    actions.events += [f.PilotOrdered(now_ms, name, each) for each in fresh]
    actions.acquire += fresh
    if fleet.is_recalled and not left:
        actions.events.append(f.FleetRemoved(now_ms, name))
    return actions


def _why_over(pilot: Pilot, node: PilotNode | None, absent_ms: int | None, now_ms: int) -> str | None:
    """Why a pilot has ended; None if it may still exist. It exists as long as its node is not lost."""
    if node is not None and not node.is_lost:
        return None
    if pilot.phase is PilotPhase.ENDED:
        return pilot.why or "ended"
    if absent_ms is None:
        return None
    if pilot.recalled_ms is not None:
        return pilot.why or "returned"
    if pilot.phase is not None and now_ms - absent_ms >= ABSENT_MS:
        return "the provider does not know it any more"
    return None


def _recall(
    fleet: Fleet, pilots: Sequence[Pilot], nodes: Mapping[str, PilotNode], target: int, held: int, now_ms: int
) -> dict[str, str]:
    """The pilots to return, and why. A busy node is returned only if a user reduced the fleet."""
    wanted = [pilot for pilot in pilots if pilot.recalled_ms is None]
    if fleet.is_recalled:
        return {pilot.name: "the fleet is being removed" for pilot in wanted}
    found = {pilot.name: why for pilot in wanted if (why := _why_given_up(pilot, nodes.get(pilot.name), now_ms))}
    wanted = [pilot for pilot in wanted if pilot.name not in found and not _is_going(pilot, now_ms)]
    in_order = sorted(wanted, key=lambda pilot: _return_order(pilot, nodes.get(pilot.name)))
    surplus = in_order[: max(0, len(wanted) - target)]
    spec = fleet.spec
    for at, pilot in enumerate(surplus):
        node = nodes.get(pilot.name)
        is_beyond = len(wanted) - at > spec.nodes_max  # a user reduced the fleet
        if is_beyond or (node is None and len(wanted) - at > held):
            found[pilot.name] = "the fleet was reduced" if is_beyond else "not needed any more"
        elif node is not None and not node.is_busy and now_ms - node.since_ms >= spec.idle_ms:
            found[pilot.name] = "idle"
    return found


def _why_given_up(pilot: Pilot, node: PilotNode | None, now_ms: int) -> str:
    if node is not None and node.is_lost and now_ms - node.since_ms >= SILENT_MS:
        return "its node is lost"
    is_late = pilot.started_ms is not None and now_ms - pilot.started_ms >= SILENT_MS
    if pilot.joined_ms is None and node is None and is_late:
        return "started, but never joined: check that it can reach the server"
    return ""


def _return_order(pilot: Pilot, node: PilotNode | None) -> tuple[int, int, str]:
    """The order in which pilots are returned: queued, lost, idle for longest, busy."""
    if node is None:
        return (0 if pilot.phase is not PilotPhase.STARTED else 1, -pilot.ordered_ms, pilot.name)
    return (2 if node.is_lost else 4 if node.is_busy else 3, node.since_ms, pilot.name)


def _drain_and_release(actions: Actions, pilot: Pilot, node: PilotNode | None) -> None:
    """Drain the node, wait until its jobs have left it, then release the pilot."""
    if node is not None and not node.is_lost:
        if not node.is_drained:
            actions.drain.append(pilot.name)
            return
        if node.is_busy:
            return
    actions.release.append(pilot.name)


def _missing(fleet: Fleet, staying: Sequence[Pilot], target: int, now_ms: int) -> int:
    """The number of pilots to order now."""
    if fleet.is_recalled or is_over_cost_limit(fleet, now_ms):
        return 0
    if fleet.failures:
        wait_ms = min(BACKOFF_MS << min(fleet.failures - 1, 16), BACKOFF_MS_MAX)
        if now_ms - fleet.last_end_ms < wait_ms:
            return 0
    lasting = sum(not _is_going(pilot, now_ms) for pilot in staying)
    missing = max(0, min(target, fleet.spec.nodes_max) - lasting)
    return min(missing, 1) if fleet.failures else missing  # one pilot shows whether it works again


def _is_going(pilot: Pilot, now_ms: int) -> bool:
    """Whether the provider will soon withdraw the node."""
    if pilot.until_ms is None:
        return False
    life_ms = pilot.until_ms - (pilot.started_ms or pilot.ordered_ms)
    return pilot.until_ms - now_ms < min(LEAD_MS, life_ms // LEAD_PART)


def is_over_cost_limit(fleet: Fleet, now_ms: int) -> bool:
    """Whether the fleet has reached its cost limit."""
    most = fleet.spec.cost_max_milli
    return most is not None and fleet.cost_milli(now_ms) >= most
