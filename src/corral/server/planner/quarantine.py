"""What the server does when planning fails: ask the planner which jobs cause it, and hold them.

Knows how long to wait if no job is the cause. How a job is held is passed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from corral.server.clock import Clock
from corral.server.planner.bisect import Culprit
from corral.server.planner.client import Planner, PlannerError, PlannerLost

log = structlog.get_logger(__name__)

_RETRY_S, _RETRY_S_MAX = 1.0, 60.0
_TRIALS = 40  # a search may take as long as this many of them that hang


class Quarantine:
    """``hold`` quarantines a job with a reason; it returns whether that was still possible."""

    def __init__(self, planner: Planner, clock: Clock, hold: Callable[[str, str], bool]) -> None:
        self._planner = planner
        self._clock = clock
        self._hold = hold
        self._retry_s = _RETRY_S

    def planned(self) -> None:
        """A plan was made: the next failure is a new one."""
        self._retry_s = _RETRY_S

    async def search(self, fault: str, patience_s: float) -> bool:
        """Find the jobs with which planning fails, and hold them. If there is none, wait; each time longer.

        Returns whether the planner still answers.
        """
        culprits: tuple[Culprit, ...] = ()
        is_there = True
        try:
            async with asyncio.timeout(patience_s * _TRIALS):
                await self._planner.ready()
                culprits = (await self._planner.blame(self._clock.now_ms(), patience_s)).culprits
        except (PlannerLost, PlannerError, TimeoutError) as lost:
            log.error("quarantine_search_failed", error=repr(lost))
            is_there = False
        for culprit in culprits:
            if self._hold(culprit.job, culprit.fault):
                log.error("job_quarantined", job=culprit.job, why=culprit.fault)
        if not culprits:
            log.error("no_job_explains_the_failed_plan", error=fault[:2000], retry_in_s=self._retry_s)
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
        return is_there
