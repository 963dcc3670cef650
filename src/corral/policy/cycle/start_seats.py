"""Seats on which a gang starts now: the largest size that its queue may have and that fits, as close as it prefers.

Knows what a queue may use, and asks for seats; does not know the order of gangs, and reserves nothing.
"""

from __future__ import annotations

from functools import partial

from corral.core.cluster.resources import Demand
from corral.core.model import Gang
from corral.core.plan import NoSeats, Verdict
from corral.core.queues.quota import Shortfall
from corral.core.snapshot import Draft
from corral.policy.placement.seating import Bounds, Cut, Scorer, Seating, find_seats
from corral.policy.preemption.preemptor import Preemptor
from corral.policy.quota.allowance import Allowances
from corral.policy.quota.limits import Limits


class StartSeats:
    """Seats in one draft."""

    def __init__(
        self, draft: Draft, allowances: Allowances, limits: Limits, room: Preemptor, scorer: Scorer | None
    ) -> None:
        self._draft, self._state = draft, draft.state
        self._snapshot = draft.snapshot
        self._allowances, self._limits = allowances, limits
        self._room, self._scorer = room, scorer

    def find(self, gang: Gang, bounds: Bounds) -> tuple[Seating | None, Verdict]:
        """Seats for the largest size that its queue may have and that fits; and why not, if there are none."""
        demand, widest = gang.demand, self.widest(gang)
        verdict: Verdict = NoSeats.NONE_CLOSE if widest else NoSeats.NONE_FREE
        short: Shortfall | None = None
        for size in demand.sizes():
            if size == demand.smallest or self._may_have(gang, size):
                found, short = self._allowances.find(gang, size, partial(self._seats, gang, size, bounds, widest))
                if found is not None:
                    return found, verdict
        return None, short or verdict

    def content_ms(self, gang: Gang) -> int:
        """Until when a gang prefers to wait for seats that are closer together."""
        return gang.waiting_since_ms + gang.demand.prefer_wait_ms if gang.demand.prefer else 0

    def is_hoping(self, gang: Gang) -> bool:
        """Whether a gang still waits for seats that are closer together."""
        return self._draft.now_ms < self.content_ms(gang)

    def widest(self, gang: Gang) -> int:
        """The outermost level whose domains are close enough together for a gang that still waits for such seats."""
        return (self._state.topology.level_index(gang.demand.prefer) or 0) if self.is_hoping(gang) else 0

    def _may_have(self, gang: Gang, size: int) -> bool:
        charge = self._state.topology.least_charge(gang.demand, size)
        if self._limits.in_the_way_of(gang, charge) is not None or self._allowances.shortfall(gang, size) is not None:
            return False
        # beyond its guarantee it would be reclaimed at once by a queue that waits for its own
        waiting = [queue for queue in self._state.backlog.queues if queue != gang.queue]
        return not self._limits.is_beyond(gang, charge) or not any(map(self._room.is_owed, waiting))

    def _seats(
        self, gang: Gang, size: int, bounds: Bounds, widest: int, demand: Demand, cut: Cut | None
    ) -> Seating | None:
        avoid = self._snapshot.avoid(gang)
        return find_seats(self._draft.capacity, demand, size, avoid, bounds, self._scorer, widest, cut)
