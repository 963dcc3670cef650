"""EASY backfill on a counter of GPUs, as the literature has it, written for comparison and used by nothing else.

In order of arrival; the first that does not fit is promised the earliest time at which it will; whoever is behind may
start if it fits now and either is over by then or leaves enough for the first at that time. Lengths are as told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class Asked:
    name: str
    at_ms: int
    gpus: int
    length_ms: int  # how long it really runs
    told_ms: int  # how long it is said to run, never less


def easy(jobs: Sequence[Asked], gpus: int) -> dict[str, int]:
    """When each job starts."""
    starts: dict[str, int] = {}
    waiting: list[Asked] = []
    running: dict[str, tuple[int, int]] = {}  # name -> (GPUs, when it is said to end)
    ends: list[tuple[int, str]] = []
    coming, now = sorted(jobs, key=lambda each: each.at_ms), 0
    while coming or ends:
        now = min([each.at_ms for each in coming[:1]] + [end for end, _ in ends[:1]])
        while ends and ends[0][0] <= now:
            running.pop(heappop(ends)[1])
        while coming and coming[0].at_ms <= now:
            waiting.append(coming.pop(0))
        for each in _starting(waiting, running, gpus, now):
            starts[each.name] = now
            waiting.remove(each)
            running[each.name] = (each.gpus, now + each.told_ms)
            heappush(ends, (now + each.length_ms, each.name))
    return starts


def _starting(waiting: Sequence[Asked], before: dict[str, tuple[int, int]], gpus: int, now: int) -> list[Asked]:
    running = [(told, held) for held, told in before.values()]
    free, found = gpus - sum(held for _, held in running), list[Asked]()
    promised, spare = -1, 0  # when the first that is blocked will start, and what it leaves then
    for each in waiting:
        fits = each.gpus <= free
        is_over = now + each.told_ms <= promised
        if fits and (promised < 0 or is_over or each.gpus <= spare):
            free -= each.gpus
            spare -= 0 if promised < 0 or is_over else each.gpus
            running.append((now + each.told_ms, each.gpus))
            found.append(each)
        elif promised < 0:
            promised, spare = _when(running, free, each.gpus, now)
    return found


def _when(running: Sequence[tuple[int, int]], free: int, wanted: int, now: int) -> tuple[int, int]:
    """The earliest time at which so many are free, and how many are left then."""
    for told, _ in sorted(running):
        held_then = sum(held for end, held in running if end > told)
        held_now = sum(held for _, held in running)
        if free + held_now - held_then >= wanted:
            return max(told, now + 1), free + held_now - held_then - wanted
    raise AssertionError("it never fits")
