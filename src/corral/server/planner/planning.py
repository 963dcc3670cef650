"""When the live server plans: whenever something has changed or is due. Plans are committed as they arrive.

The planner is a separate process; its plans are checked against the current state. A planner that ends or hangs is
restarted, and jobs that make planning fail are held. Knows when to ask and what to do with the answer; answers are made
in ``process``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from corral.core import events as e
from corral.core.commit import commit
from corral.core.intake.commands import quarantine
from corral.core.intake.refusal import Refusal
from corral.server.durability import Batch
from corral.server.loop import SYSTEM, Loop
from corral.server.planner.client import Planner, PlannerError, PlannerHung, PlannerLost
from corral.server.planner.quarantine import Quarantine
from corral.server.shutdown import ServerStopped

log = structlog.get_logger(__name__)

#: After these events alone there is nothing new to plan.
_CALM = frozenset({e.TasksStarted, e.GangStarted, e.CheckpointCommitted, e.GangSlowed, e.JobForgotten, e.ClaimDropped})
_PLAN_GAP_S = 0.002
_REVIVE_S = 0.2
_LOAD_S = 600.0  # a planner that has not loaded the state by then has failed
_LOSSES = 2  # planners lost in a row before the planner searches for the job that causes it


class Planning:
    """``patience_s``: a planner that has not answered by then is restarted."""

    def __init__(self, loop: Loop, planner: Planner, patience_s: float) -> None:
        self.planner = planner
        self.patience_s = patience_s
        self.plans = 0
        self.reserved_ms: dict[str, int] = {}  # gang -> start that the last plan reserved
        self._loop = loop
        self._state = loop.known.state
        self._clock = loop.clock
        self._wanted = asyncio.Event()
        self._look_again_ms: int | None = None
        self._losses = 0
        self._quarantine = Quarantine(planner, loop.clock, self._hold)
        loop.listeners.append(self._notice)

    def want(self) -> None:
        """Request a plan."""
        self._wanted.set()

    def _notice(self, batch: Batch) -> None:
        self.planner.follow(batch.bodies)
        if not _CALM.issuperset(map(type, batch.events)):
            self._wanted.set()

    async def run(self) -> None:
        """Plan whenever something has changed or is due."""
        while self._loop.durability.failure is None:
            await self._until_wanted()
            self._wanted.clear()
            try:
                await self._plan()
            except PlannerLost as lost:
                log.warning("planner_lost", error=str(lost))
                self._losses += 1
                await self._begin_planner()
                if self._losses >= _LOSSES:
                    await self._search(str(lost))
            except ServerStopped:
                return
            except Exception as fault:  # in the policy, or in committing its plan
                log.error("plan_failed", error=str(fault), exc_info=not isinstance(fault, PlannerError))
                await self._search(repr(fault))
            else:
                self._losses = 0
                self._quarantine.planned()
            await asyncio.sleep(_PLAN_GAP_S)

    async def _until_wanted(self) -> None:
        """Wait until something has changed, a queue changes by its schedule, or the last plan asked to be repeated."""
        now_ms = self._clock.now_ms()
        due = [self._state.queues.next_change_ms(now_ms)]
        if self._look_again_ms is not None:
            due.append(self._look_again_ms)
        wait_s = max(0, min(due) - now_ms) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, 3600)):  # wait_for may swallow a cancellation
                await self._wanted.wait()

    async def _plan(self) -> None:
        try:
            async with asyncio.timeout(_LOAD_S):
                await self.planner.ready()
            asked_ms = self._clock.now_ms()
            async with asyncio.timeout(self.patience_s):
                plan = await self.planner.plan(asked_ms)
        except TimeoutError:
            raise PlannerHung(f"no plan within {self.patience_s:g} s") from None
        now_ms = self._clock.now_ms()
        self.plans += 1
        self._look_again_ms = plan.look_again_ms
        self.reserved_ms = {each.gang: each.at_ms for each in plan.reservations}
        events = commit(self._state, plan, now_ms)
        named = {event.gang for event in events if isinstance(event, e.GangEvent)}
        dropped = sum(decision.gang not in named for decision in plan.decisions)
        self._loop.meter.planned((now_ms - asked_ms) / 1000, len(plan.decisions) - dropped, dropped)
        if events:
            was_wanted = self._wanted.is_set()
            self._loop.take(SYSTEM, events, now_ms)
            if not was_wanted and not dropped:
                self._wanted.clear()  # these events come from the plan itself

    async def _begin_planner(self) -> None:
        """Restart the planner. If that fails, the next plan finds it lost and tries again; there is a pause between."""
        try:
            await self.planner.begin(self._loop.known.pack())
        except (OSError, PlannerLost) as wrong:
            log.error("planner_start_failed", error=str(wrong))
        await asyncio.sleep(_REVIVE_S)
        self._wanted.set()

    async def _search(self, fault: str) -> None:
        """Planning failed: find the waiting jobs that cause it and hold them."""
        self._loop.meter.plan_failed()
        if not await self._quarantine.search(fault, self.patience_s):
            await self._begin_planner()
        self._wanted.set()

    def _hold(self, job: str, why: str) -> bool:
        """Quarantine a job. Returns whether that was still possible."""
        now_ms = self._clock.now_ms()
        events = quarantine(self._state, job, why, now_ms)
        if isinstance(events, Refusal):
            return False  # it has ended or is held
        self._loop.take(SYSTEM, events, now_ms)
        self._loop.meter.quarantined()
        return True
