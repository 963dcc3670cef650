"""Claims: whether the claimed seats can still be used by their gang, and whether they are vacant. See decision 0002."""

from __future__ import annotations

from corral.core.model import Blocker, Gang
from corral.core.snapshot import Draft
from corral.core.state import lasts


def is_tenable(draft: Draft, gang: Gang) -> bool:
    """Whether a gang can still use its claimed seats."""
    if gang.blockers & ~Blocker.BACKOFF or not lasts(draft.state, gang, gang.claim, draft.now_ms):
        return False
    capacity, number = draft.capacity, draft.state.topology.number
    numbers = [(number.get(seat.node), seat.gpus) for seat in gang.claim]
    return all(n is not None and capacity.open[n] and not gpus & ~capacity.up[n] for n, gpus in numbers)


def is_vacant(draft: Draft, gang: Gang) -> bool:
    """Whether the claimed seats of a gang are vacant."""
    capacity, number = draft.capacity, draft.state.topology.number
    tasks: dict[int, int] = {}
    for seat in gang.claim:
        n = number[seat.node]
        tasks[n] = tasks.get(n, 0) + 1
        if seat.gpus & capacity.used[n]:
            return False
    return all(
        (capacity.left[name][n] or 0) >= each * count for n, count in tasks.items() for name, each in gang.amounts
    )
