"""Conservative backfill on a counter of GPUs, written for comparison and used by nothing else.

Everyone who waits is promised a start. At each moment, in order of arrival, each gives its promise back and takes the
earliest start that leaves the promises of all others as they are. Lengths are as told.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from tests.judges.runs.easy import Asked

#: (from, until, GPUs) that are held, or promised
Held = tuple[int, int, int]


def conservative(jobs: Sequence[Asked], gpus: int) -> dict[str, int]:
    """When each job starts."""
    starts: dict[str, int] = {}
    waiting: list[Asked] = []
    held: dict[str, Held] = {}  # of those who run, and those who are promised a start
    ends: list[tuple[int, str]] = []
    coming, wake = sorted(jobs, key=lambda each: each.at_ms), list[int]()
    while coming or ends or waiting:
        now = min([each.at_ms for each in coming[:1]] + [end for end, _ in ends[:1]] + wake)
        while ends and ends[0][0] <= now:
            held.pop(heappop(ends)[1])
        while coming and coming[0].at_ms <= now:
            waiting.append(coming.pop(0))
        for each in list(waiting):
            held.pop(each.name, None)
            at_ms = _earliest(list(held.values()), gpus, each, now)
            held[each.name] = (at_ms, at_ms + each.told_ms, each.gpus)
            if at_ms == now:
                starts[each.name] = now
                waiting.remove(each)
                heappush(ends, (now + each.length_ms, each.name))
        wake = [held[each.name][0] for each in waiting]
    return starts


def _earliest(held: Sequence[Held], gpus: int, wanted: Asked, now: int) -> int:
    for at_ms in sorted({now, *(end for _, end, _ in held if end > now)}):
        until = at_ms + wanted.told_ms
        times = [at_ms, *(begin for begin, _, _ in held if at_ms < begin < until)]
        busiest = max(sum(count for begin, end, count in held if begin <= time < end) for time in times)
        if busiest + wanted.gpus <= gpus:
            return at_ms
    raise AssertionError("it never fits")
