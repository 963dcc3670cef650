"""What the server does when no plan can be made: ask the planner which jobs are to blame, and hold them.

Knows whom to ask and for how long to wait where no job explains it. How a job is held it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from corral.server.clock import Clock
from corral.server.planning.blame import Culprit
from corral.server.planning.planner import Planner, PlannerLost, ThoughtFailed

log = structlog.get_logger(__name__)

_RETRY_S, _RETRY_S_MAX = 1.0, 60.0
_TRIALS = 40  # a search may take as long as this many of them that hang


class Quarantine:
    """``hold`` keeps a job out of line, with the reason; it says whether that was still possible."""

    def __init__(self, planner: Planner, clock: Clock, hold: Callable[[str, str], bool]) -> None:
        self._planner, self._clock, self._hold = planner, clock, hold
        self._retry_s = _RETRY_S

    def planned(self) -> None:
        """A plan was made: the next failure is a new one."""
        self._retry_s = _RETRY_S

    async def search(self, fault: str, patience_s: float) -> bool:
        """Find the jobs with which planning fails, and hold them. Where there is none, wait for longer each time.

        Says whether the planner can still be asked.
        """
        culprits: tuple[Culprit, ...] = ()
        is_there = True
        try:
            async with asyncio.timeout(patience_s * _TRIALS):
                await self._planner.ready()
                culprits = (await self._planner.blame(self._clock.now_ms(), patience_s)).culprits
        except (PlannerLost, ThoughtFailed, TimeoutError) as lost:
            log.error("search_failed", error=repr(lost))
            is_there = False
        for culprit in culprits:
            if self._hold(culprit.job, culprit.fault):
                log.error("job_quarantined", job=culprit.job, why=culprit.fault)
        if not culprits:
            log.error("no_job_explains_the_failed_plan", error=fault[:2000], retry_in_s=self._retry_s)
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
        return is_there
