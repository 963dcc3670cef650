"""What is to be done about a fleet, given what it wants, what its engine says and how its nodes are. Pure.

Works by levels: whatever was not done, or nobody knows whether it was, is owed again the next time. A pilot goes
through: ordered, acquired, joined; recalled, emptied, released, removed. What an engine says of a lost pilot only makes
it quicker to be let go: as long as its node keeps its lease, the pilot is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from corral.core.fleets import fleets as f
from corral.core.fleets.fleets import Fleet, FleetEvent, NodeShape, Pilot, PilotPhase

#: After pilots that came to an end without having joined: so long until the next is ordered, doubled each time.
BACKOFF_MS, BACKOFF_MS_MAX = 5_000, 600_000
#: An engine that knows nothing of a pilot for so long has lost it.
ABSENT_MS = 10_000
#: A pilot that was started and has not joined, or whose node is silent, for so long is given up.
SILENT_MS = 600_000
#: A node that is about to be taken away is replaced so long before, if it is still wanted then; but for machines that
#: are lent for a short while only, when so small a part of it is left.
LEAD_MS, LEAD_PART = 60_000, 4


class Standing(Struct, frozen=True):
    """A node as the cluster has it. ``since_ms``: since when it is lost, or idle."""

    is_lost: bool = False
    is_busy: bool = False
    is_drained: bool = False
    since_ms: int = 0
    shape: NodeShape = NodeShape()


class Owed(Struct):
    """What is to be done, in this order. ``drain``, ``remove``: nodes; ``acquire``, ``release``: pilots."""

    events: list[FleetEvent] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)
    acquire: list[str] = field(default_factory=list)
    release: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)


def upkeep(
    fleet: Fleet,
    names: Sequence[str],
    nodes: Mapping[str, Standing],
    target: int,
    absent_since_ms: Mapping[str, int],
    now_ms: int,
    held: int | None = None,
) -> Owed:
    """``names``: for new pilots, as many as may be needed. ``target``: how many nodes there should be.
    ``held``: the most there should have been lately; what was asked for for its sake is waited for.
    ``absent_since_ms``: pilots that the engine was asked about and knows nothing of, since when."""
    owed = Owed()
    name = fleet.spec.name
    over: set[str] = set()
    for pilot in fleet.pilots.values():
        node = nodes.get(pilot.name)
        if node is not None and not node.is_lost and pilot.joined_ms is None:
            owed.events.append(f.PilotJoined(now_ms, name, pilot.name, node.shape))
        why = _why_over(pilot, node, absent_since_ms.get(pilot.name), now_ms)
        if why is not None:
            over.add(pilot.name)
            if node is not None:
                owed.remove.append(pilot.name)
            owed.events.append(f.PilotEnded(now_ms, name, pilot.name, why))
    left = [pilot for pilot in fleet.pilots.values() if pilot.name not in over]
    recalled = _recall(fleet, left, nodes, target, max(target, held or 0), now_ms)
    owed.events += [f.PilotRecalled(now_ms, name, each, why) for each, why in recalled.items()]
    for pilot in left:
        if pilot.recalled_ms is not None or pilot.name in recalled:
            _see_off(owed, pilot, nodes.get(pilot.name))
        elif pilot.phase is None:
            owed.acquire.append(pilot.name)
    staying = [pilot for pilot in left if pilot.recalled_ms is None and pilot.name not in recalled]
    has_failed = any(fleet.pilots[each].recalled_ms is None and fleet.pilots[each].joined_ms is None for each in over)
    fresh = [] if has_failed else list(names[: _missing(fleet, staying, target, now_ms)])
    owed.events += [f.PilotOrdered(now_ms, name, each) for each in fresh]
    owed.acquire += fresh
    if fleet.is_recalled and not left:
        owed.events.append(f.FleetRemoved(now_ms, name))
    return owed


def _why_over(pilot: Pilot, node: Standing | None, absent_ms: int | None, now_ms: int) -> str | None:
    """Why nothing is left of a pilot; None: something may be. Its node has the last word."""
    if node is not None and not node.is_lost:
        return None
    if pilot.phase is PilotPhase.ENDED:
        return pilot.why or "it has ended"
    if absent_ms is None:
        return None
    if pilot.recalled_ms is not None:
        return pilot.why or "it was given back"
    if pilot.phase is not None and now_ms - absent_ms >= ABSENT_MS:
        return "the engine knows nothing of it any more"
    return None


def _recall(
    fleet: Fleet, pilots: Sequence[Pilot], nodes: Mapping[str, Standing], target: int, held: int, now_ms: int
) -> dict[str, str]:
    """Who is not wanted any more, and why. Only where a person said so is anybody asked to leave who has work."""
    wanted = [pilot for pilot in pilots if pilot.recalled_ms is None]
    if fleet.is_recalled:
        return {pilot.name: "the fleet is given back" for pilot in wanted}
    found = {pilot.name: why for pilot in wanted if (why := _why_given_up(pilot, nodes.get(pilot.name), now_ms))}
    wanted = [pilot for pilot in wanted if pilot.name not in found and not _is_going(pilot, now_ms)]
    surplus = sorted(wanted, key=lambda pilot: _dearness(pilot, nodes.get(pilot.name)))[: max(0, len(wanted) - target)]
    spec = fleet.spec
    for at, pilot in enumerate(surplus):
        node = nodes.get(pilot.name)
        is_beyond = len(wanted) - at > spec.nodes_max  # a person wants fewer
        if is_beyond or (node is None and len(wanted) - at > held):
            found[pilot.name] = "fewer nodes are wanted" if is_beyond else "it is not needed any more"
        elif node is not None and not node.is_busy and now_ms - node.since_ms >= spec.idle_ms:
            found[pilot.name] = "it had nothing to do"
    return found


def _why_given_up(pilot: Pilot, node: Standing | None, now_ms: int) -> str:
    if node is not None and node.is_lost and now_ms - node.since_ms >= SILENT_MS:
        return "its node is silent"
    is_late = pilot.started_ms is not None and now_ms - pilot.started_ms >= SILENT_MS
    if pilot.joined_ms is None and node is None and is_late:
        return "it was started and never joined: does it reach the server?"
    return ""


def _dearness(pilot: Pilot, node: Standing | None) -> tuple[int, int, str]:
    """Those that are let go first: what waits, what is lost, what is idle for longest, what has work."""
    if node is None:
        return (0 if pilot.phase is not PilotPhase.STARTED else 1, -pilot.ordered_ms, pilot.name)
    return (2 if node.is_lost else 4 if node.is_busy else 3, node.since_ms, pilot.name)


def _see_off(owed: Owed, pilot: Pilot, node: Standing | None) -> None:
    """Take nothing new, let what runs leave, then give the machine back."""
    if node is not None and not node.is_lost:
        if not node.is_drained:
            owed.drain.append(pilot.name)
            return
        if node.is_busy:
            return
    owed.release.append(pilot.name)


def _missing(fleet: Fleet, staying: Sequence[Pilot], target: int, now_ms: int) -> int:
    """How many are to be ordered now."""
    if fleet.is_recalled or is_too_dear(fleet, now_ms):
        return 0
    if fleet.failures:
        wait_ms = min(BACKOFF_MS << min(fleet.failures - 1, 16), BACKOFF_MS_MAX)
        if now_ms - fleet.last_end_ms < wait_ms:
            return 0
    lasting = sum(not _is_going(pilot, now_ms) for pilot in staying)
    missing = max(0, min(target, fleet.spec.nodes_max) - lasting)
    return min(missing, 1) if fleet.failures else missing  # one is enough to find out whether it works again


def _is_going(pilot: Pilot, now_ms: int) -> bool:
    """Whether its machine is about to be taken away by the engine."""
    if pilot.until_ms is None:
        return False
    life_ms = pilot.until_ms - (pilot.started_ms or pilot.ordered_ms)
    return pilot.until_ms - now_ms < min(LEAD_MS, life_ms // LEAD_PART)


def is_too_dear(fleet: Fleet, now_ms: int) -> bool:
    """Whether it has cost what it may cost."""
    most = fleet.spec.cost_max_milli
    return most is not None and fleet.cost_milli(now_ms) >= most
