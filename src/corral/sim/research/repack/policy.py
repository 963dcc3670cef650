"""Policies of the literature: a rank for every gang, and a way to place gangs in its order.

They preempt freely and assume that switching is cheap; use them for comparison, or where it is cheap. A pure function
of the snapshot; knows neither the ranks nor how seats are found.
"""

from __future__ import annotations

from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Cycle
from corral.sim.research.repack.in_place import InPlace
from corral.sim.research.repack.migrate import Migration
from corral.sim.research.repack.ranks import Change, Rank
from corral.sim.research.repack.seats import Seats


class Repack:
    """Serve in order of rank; gangs of lower rank in the way are preempted.

    Without ``moves`` a running gang stays on its nodes or is preempted, and the GPUs of a node are interchangeable: it
    stays if enough of them are left. With ``moves`` all gangs are placed again in an empty cluster, on the first nodes
    that fit, and gangs on other nodes move there.
    """

    def __init__(self, rank: Rank, parts: Parts, moves: bool = False, change: Change | None = None) -> None:
        self.rank = rank
        self.parts = parts
        self.moves = moves
        self.change = change

    def __call__(self, snapshot: Snapshot) -> Plan:
        cycle = Cycle(snapshot, self.parts)
        cycle.start_claimants()
        cycle.repair()
        cycle.drain()
        seating = (Migration if self.moves else InPlace)(cycle, self.rank)
        seating.seat()
        seating.decide()
        again = self._look_again_ms(seating)
        return Plan(snapshot.now_ms, tuple(cycle.decisions), look_again_ms=again, why=seating.why)

    def _look_again_ms(self, seating: Seats) -> int | None:
        if self.change is None:
            return None
        changes = [self.change(seating.cycle.snapshot, gang) for gang in seating.who_runs()]
        return min((when_ms for when_ms in changes if when_ms is not None), default=None)
