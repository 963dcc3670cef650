"""Fragmentation: how much of the free capacity was on nodes partly in use, while jobs were queued.

Node by node, each with its own changes in order of time. Does not know which jobs used them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from corral.sim.history import History, StepList
from corral.sim.report.series import Changes, Steps


def fragmentation(history: History, in_line: Steps) -> float | None:
    """Of the GPU time that was free while jobs with GPUs were queued, the part on nodes that were partly in use.

    None if nothing was free while jobs were queued, or if the history does not state the GPUs of its nodes.
    """
    held, waited = _held_by_node(history), _Waited(in_line)
    free = scattered = 0
    for node, capacity in history.nodes.items():
        node_free, node_scattered = _areas(capacity, held.get(node, []), waited, history.end_ms)
        free += node_free
        scattered += node_scattered
    return scattered / free if free else None


class _Waited:
    """The total time up to a given time in which any job was queued."""

    def __init__(self, in_line: Steps) -> None:
        self._times: list[int] = []
        self._before: list[int] = []
        self._waits: list[bool] = []
        for time, value in zip(in_line.times, in_line.values, strict=True):
            if not self._waits or self._waits[-1] != (value > 0):
                self._before.append(self.by(time))
                self._times.append(time)
                self._waits.append(value > 0)

    def by(self, time: int) -> int:
        place = bisect_right(self._times, time) - 1
        if place < 0:
            return 0
        return self._before[place] + (time - self._times[place] if self._waits[place] else 0)


def _areas(capacity: StepList, held: Changes, waited: _Waited, end_ms: int) -> tuple[int, int]:
    """What was free on a node while jobs were queued, in GPU-milli times ms, and the fragmented part of it."""
    free = scattered = has = taken = before = 0
    changes = [(time, change, 0) for time, change in held]
    for (time, value), (_, last) in zip(capacity, [(0, 0), *capacity], strict=False):
        changes.append((time, 0, value - last))
    for time, more_taken, more_had in sorted([*changes, (end_ms, 0, 0)]):
        now = waited.by(time)
        if now > before and has > taken:
            area = (has - taken) * (now - before)
            free += area
            scattered += area if taken else 0
        before = now
        has, taken = has + more_had, taken + more_taken
    return free, scattered


def _held_by_node(history: History) -> dict[str, Changes]:
    found: dict[str, Changes] = {}
    for job in history.jobs.values():
        for run in job.runs:
            if run.gpu_milli:
                until = history.end_ms if run.ended_ms is None else run.ended_ms
                each = run.gpu_milli // len(run.nodes)
                for node, seats in Counter(run.nodes).items() if len(run.nodes) > 1 else ((run.nodes[0], 1),):
                    found.setdefault(node, []).extend(((run.placed_ms, each * seats), (until, -each * seats)))
    return found
