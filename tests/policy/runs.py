"""Small clusters over hours and days: work arrives, runs for exactly as long as it says, leaves; what everybody had is
counted. An engine is turned as live, whenever something has happened. Chance comes from whoever writes the run."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from corral.core.cluster.resources import Demand
from corral.core.effects import KillGang, StartGang, WarnGang, effects
from corral.core.engine import Policy
from corral.core.model import Gang, GangState
from corral.core.plan import Plan
from tests.world import World, demand_of

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
SAVED = 85  # how a job leaves that has saved its work and is to be run again


class Run:
    """A world in which work takes as long as it said. Whoever is asked to leave does so at once."""

    def __init__(self, policy: Policy) -> None:
        self.world = World(policy)
        self.world.checks = False
        self.began = self.world.now
        self.served: dict[str, int] = {}  # queue -> GPU-milliseconds since the last ``reset``
        self.started: dict[str, int] = {}  # job -> when it first had seats, since the beginning
        self.plans: list[Plan] = []
        self.keeps_plans = False
        self._ends: list[tuple[int, str, int]] = []
        self._arrivals: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def now(self) -> int:
        """Milliseconds since the run began."""
        return self.world.now - self.began

    def submit(self, queue: str, gpus: int, length_ms: int, user: str = "ann", name: str = "", **spec: object) -> Gang:
        """One gang of so many GPUs, in tasks of at most eight, that takes just less than it may."""
        self._count += 1
        each = min(gpus, 8)
        demand: Demand = demand_of(each, gpus // each)
        terms = {"time_limit_ms": length_ms + 1, "grace_ms": 0, **spec}
        return self.world.submit(name or f"j{self._count}", queue, demand, user, **terms)

    def later(self, at_ms: int, then: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._arrivals, (self.began + at_ms, self._count, then))

    def until(self, at_ms: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass: every end and every arrival is followed by a plan."""
        end = self.began + at_ms
        self._turn()
        while not is_over():
            ahead = [heap[0][0] for heap in (self._ends, self._arrivals) if heap]
            now = min([end, *ahead])
            self._pass(now)
            if now >= end:
                return
            while self._ends and self._ends[0][0] <= now:
                _, name, attempt = heappop(self._ends)
                gang = self.world.state.gangs.get(name)
                if gang is not None and gang.attempt == attempt and gang.state is GangState.RUNNING:
                    self.world.down(gang)
            while self._arrivals and self._arrivals[0][0] <= now:
                heappop(self._arrivals)[2]()
            self._turn()

    def _pass(self, now: int) -> None:
        passed = now - self.world.now
        for gang in self.world.state.holders.values():
            self.served[gang.queue] = self.served.get(gang.queue, 0) + gang.gpu_milli * passed // 1000
        self.world.wait(passed)

    def _turn(self) -> None:
        for _ in range(50):
            plan = self.world.cycle()
            if self.keeps_plans:
                self.plans.append(plan)
            if not self._carry_out():
                return
        raise AssertionError("the engine does not come to rest")

    def _carry_out(self) -> bool:
        """Whether somebody left meanwhile, or sat down where others have left, so that there is more to plan."""
        is_more = False
        for effect in effects(self.world.state):
            gang = self.world.state.gangs[effect.gang]
            if isinstance(effect, StartGang):
                self.world.up(gang)
                self.started.setdefault(gang.job, self.now)
                limit = self.world.state.jobs[gang.job].spec.time_limit_ms
                assert limit is not None
                heappush(self._ends, (self.world.now + limit - 1, gang.id, gang.attempt))
            elif isinstance(effect, KillGang | WarnGang):
                self.world.down(gang, SAVED)
                is_more = True
        return is_more

    def shares(self) -> dict[str, float]:
        """What part of all that was had each queue has had, in points of a hundred."""
        total = sum(self.served.values())
        return {queue: 100 * had / total for queue, had in sorted(self.served.items())}
