"""The best that any batching could do with one queue and one worker, with all arrivals known in advance.

Exact: batches of a line in order of arrival are found by dynamic programming over (requests served, requests that were
later than the target). Feasible for some thousand requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from corral.sim.batches.batch_run import ServiceTimes

_NEVER = 1 << 62


def earliest_end_us(
    arrivals_us: Sequence[int], times: ServiceTimes, size_max: int, target_us: int, late_max: int
) -> int | None:
    """The earliest end of all requests if at most ``late_max`` of them take longer than ``target_us``; None: it cannot
    be done.

    To start a batch later than it can start never helps, and to have served the same requests earlier with as few late
    ones is never worse; so one number per state is enough.
    """
    ends = [[_NEVER] * (late_max + 1) for _ in range(len(arrivals_us) + 1)]
    ends[0][0] = 0
    for done in range(len(arrivals_us)):
        for late in range(late_max + 1):
            free_us = ends[done][late]
            if free_us == _NEVER:
                continue
            for count in range(1, min(size_max, len(arrivals_us) - done) + 1):
                last = done + count
                end_us = max(free_us, arrivals_us[last - 1]) + times.batch_us(count)
                now_late = late + bisect_left(arrivals_us, end_us - target_us, done, last) - done
                if now_late <= late_max and end_us < ends[last][now_late]:
                    ends[last][now_late] = end_us
    best = min(ends[-1])
    return None if best == _NEVER else best
