"""The classics of the literature as policies: a rank for everyone, and a way to seat them in its order.

They preempt freely and believe that switching is cheap; use them to compare, or where it is. A pure function of the
snapshot; knows neither the ranks nor how seats are found.
"""

from __future__ import annotations

from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.policy.repack.moving import Moving
from corral.policy.repack.ranks import Change, Rank
from corral.policy.repack.seats import Seats
from corral.policy.repack.staying import Staying
from corral.policy.standard import Cycle, Parts


class Repack:
    """Serve in order of rank; a gang of lower rank that is in the way makes room.

    Without ``moves`` whoever runs stays where it is or leaves, and the GPUs of a node are interchangeable: it stays if
    enough of them are left, whichever. With ``moves`` everyone is seated anew from an empty cluster, on the first
    nodes that will do, and whoever sits elsewhere goes there.
    """

    def __init__(self, rank: Rank, parts: Parts, moves: bool = False, change: Change | None = None) -> None:
        self.rank, self.parts, self.moves, self.change = rank, parts, moves, change

    def __call__(self, snapshot: Snapshot) -> Plan:
        cycle = Cycle(snapshot, self.parts)
        cycle.keep_promises()
        cycle.repair()
        cycle.drain()
        seating = (Moving if self.moves else Staying)(cycle, self.rank)
        seating.seat()
        seating.decide()
        return Plan(snapshot.now_ms, tuple(cycle.decisions), look_again_ms=self._look_again_ms(seating))

    def _look_again_ms(self, seating: Seats) -> int | None:
        if self.change is None:
            return None
        changes = [self.change(seating.cycle.snapshot, gang) for gang in seating.who_runs()]
        return min((when_ms for when_ms in changes if when_ms is not None), default=None)
