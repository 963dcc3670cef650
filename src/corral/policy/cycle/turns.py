"""The order in which waiting gangs have their turns, without serving any of them: what people call the line.

The same walk, reservations and patience as in a plan (``standard``). A plan that starts a gang changes shares, and with
them the order behind it; here nothing starts. So the first places are exact, and later ones are the order of now.
"""

from __future__ import annotations

from corral.core.plan import NoSeats
from corral.core.snapshot import Snapshot
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Cycle
from corral.policy.cycle.walk import Walk


def turns(snapshot: Snapshot, parts: Parts, most: int) -> list[str]:
    """The first ``most`` gangs that have a turn, in order."""
    cycle = Cycle(snapshot, parts)
    walk = Walk(cycle.draft, parts.order, cycle.room, cycle.closures, cycle.pools)
    found: dict[str, None] = {}
    while len(found) < most and (gang := walk.next()) is not None:
        turn = cycle.precedence.turn_of(walk, gang)
        if turn is None:
            continue
        chosen, is_overdue = turn
        if is_overdue:
            cycle.patience.is_over(chosen)
        found[chosen.id] = None
        cycle.closures.skip(chosen, NoSeats.NONE_FREE)
    return list(found)
