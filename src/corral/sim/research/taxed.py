"""A simulation in which every running job loses time at every event: the overhead rule of a published simulator.

At every event (a job is submitted, a job ends, a policy plans again) each running job is credited with the time since
the last event minus its tax, and never with less than 0. It makes no difference whether it was moved: that is the rule
as published, not a model of hardware. Without tax it is an exact simulation without costs that plans at every event,
also if no job waits, and at no other time. Does not know any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from corral.core import facts as f
from corral.core.effects import Effect, StartGang
from corral.core.engine import Policy
from corral.core.model import NEVER_MS, QueueSpec
from corral.core.state import State
from corral.sim.cluster_spec import ClusterSpec
from corral.sim.run import Arrival, Simulation, Write
from corral.sim.world import Item, World


class _Run(Struct):
    attempt: int
    tax_ms: int
    due_ms: int  # it ends when jobs of its tax have been credited with this much


class TaxedWorld(World):
    """Executes effects immediately, and knows the remaining work of every gang: an oracle for policies that need one.

    All gangs of one tax are credited with the same at every event, so one sum per tax is enough.
    """

    def __init__(
        self,
        state: State,
        work_ms: Mapping[str, int],
        later: Callable[[int, Item], None],
        tax_ms: Mapping[str, int],
        now_ms: int,
    ) -> None:
        super().__init__(state, work_ms, later)
        self._gangs = state.gangs
        self._put = later
        self._total = work_ms
        self._tax = tax_ms
        self._jobs = state.jobs
        self._left: dict[str, int] = {}  # of gangs that were preempted
        self._runs: dict[str, _Run] = {}
        self._now_ms = now_ms
        self._credit: dict[int, int] = dict.fromkeys([*tax_ms.values(), 0], 0)
        self._ends: dict[int, list[tuple[int, str, int]]] = {tax: [] for tax in self._credit}

    def obey(self, effects: Sequence[Effect], now_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, StartGang):
                self._begin(effect, now_ms)
            else:
                self._leave(effect.gang, effect.attempt, now_ms)

    def remaining_ms(self, gang: str) -> int:
        run = self._runs.get(gang)
        if run is not None:
            return run.due_ms - self._credit[run.tax_ms]
        left = self._left.get(gang)
        return self._total[self._gangs[gang].job] if left is None else left

    def next_end_ms(self) -> int:
        """When the next job ends if there is no event before."""
        found = NEVER_MS
        for tax, ends in self._ends.items():
            while ends and not self._is_under_way(ends[0]):
                heappop(ends)
            if ends:
                found = min(found, self._now_ms + ends[0][0] - self._credit[tax])
        return found

    def pass_time(self, now_ms: int) -> list[f.Fact]:
        """Handle an event at this time: end jobs that are done, and credit all others."""
        ended: list[f.Fact] = []
        for tax, ends in self._ends.items():
            while ends and (self._now_ms + ends[0][0] - self._credit[tax] <= now_ms or not self._is_under_way(ends[0])):
                end = heappop(ends)
                if self._is_under_way(end):
                    del self._runs[end[1]]
                    ended.append(f.TasksDown(end[1], end[2], self._gangs[end[1]].everyone, 0))
        for tax in self._credit:
            self._credit[tax] += max(0, now_ms - self._now_ms - tax)
        self._now_ms = now_ms
        return ended

    def _is_under_way(self, end: tuple[int, str, int]) -> bool:
        run = self._runs.get(end[1])
        return run is not None and run.attempt == end[2]

    def _begin(self, effect: StartGang, now_ms: int) -> None:
        known = self._runs.get(effect.gang)
        if known is not None and known.attempt == effect.attempt:
            return  # sent twice
        tax = self._tax.get(self._gangs[effect.gang].job, 0)
        run = _Run(effect.attempt, tax, self._credit[tax] + self.remaining_ms(effect.gang))
        self._runs[effect.gang] = run
        heappush(self._ends[tax], (run.due_ms, effect.gang, effect.attempt))
        self._put(now_ms, f.TasksUp(effect.gang, effect.attempt, (1 << len(effect.seats)) - 1))

    def _leave(self, name: str, attempt: int, now_ms: int) -> None:
        run = self._runs.get(name)
        if run is None or run.attempt != attempt:
            return
        gang = self._gangs[name]
        self._left[name] = self.remaining_ms(name)
        del self._runs[name]
        self._put(now_ms, f.Saved(name, attempt, gang.saved_step + 1))
        self._put(now_ms, f.TasksDown(name, attempt, gang.everyone, self._jobs[gang.job].spec.requeue_exit))


class TaxedSimulation(Simulation):
    """One run under a tax. The policy is created after the simulated cluster, because it may read from it."""

    def __init__(
        self,
        cluster: ClusterSpec,
        arrivals: Sequence[Arrival],
        policy: Callable[[TaxedWorld], Policy],
        write: Write,
        *,
        queues: Iterable[QueueSpec] = (),
        tax_ms: Mapping[str, int],
    ) -> None:
        super().__init__(cluster, arrivals, lambda snapshot: self._chosen(snapshot), write, queues=queues)
        work = {arrival.id: arrival.work_ms for arrival in arrivals}
        self.world = self.taxed = TaxedWorld(self.state, work, self.later, tax_ms, self.now_ms)
        self._chosen = policy(self.taxed)

    def next_ms(self) -> int:
        return min(super().next_ms(), self.taxed.next_end_ms())

    def _deliver(self) -> bool:
        ended = self.taxed.pass_time(self.now_ms)
        for fact in ended:
            self._tell(fact)
        return super()._deliver() or bool(ended)

    def _has_questions(self) -> bool:
        return bool(self.state.backlog.count or self.state.holders)
