"""One job of a history in numbers: when it held seats, when it was queued, and how much of its work was kept.

Knows one job at a time and the end of the history; does not know teams, clusters or other jobs. What is still running
at the end of the history is counted up to that end.
"""

from __future__ import annotations

from msgspec import Struct

from corral.core.model import PREEMPTING, FailureClass
from corral.sim.history import JobHistory, RunRecord

#: From the first time up to, not including, the second.
Spell = tuple[int, int]

#: Ends of an attempt that are not failures.
_NO_FAILURE = frozenset({"", FailureClass.PREEMPTED.value, FailureClass.CANCELLED.value})
_PREEMPTING = frozenset(cause.value for cause in PREEMPTING)

#: (label, most GPUs); a part of a GPU counts as one.
SIZE_CLASSES = (("0", 0), ("1", 1), ("2-7", 7), ("8", 8), ("9-63", 63))
LARGEST_CLASS = "64+"


class JobFigures(Struct, gc=False):
    """What one job received and what it cost. Times in milliseconds, GPU time in GPU-milliseconds."""

    completion_ms: int | None  # None: not ended
    waited_ms: int | None  # queued until it first had seats; None: it never had
    in_line_ms: int  # queued in total
    held_ms: int  # time in which any of its gangs had seats
    kept_ms: int  # running time that was not lost, summed over its gangs
    held_gpu_ms: int = 0
    starting_gpu_ms: int = 0
    kept_gpu_ms: int = 0
    lost_gpu_ms: int = 0
    busy_gpu_ms: int = 0  # of all attempts, from the start of their tasks to the end
    preemptions: int = 0
    evictions: int = 0  # for any other cause
    failures: int = 0
    slowdown: float = 1.0  # set where the length of the job is known
    finish_time_ratio: float | None = None  # set where the cluster is known


def figures(job: JobHistory, end_ms: int) -> JobFigures:
    """The figures of a job; what has not ended is counted up to ``end_ms``."""
    over_ms = end_ms if job.ended_ms is None else job.ended_ms
    held_ms = sum([until - since for since, until in held_spells(job, end_ms)])
    waited_ms = min([run.placed_ms for run in job.runs]) - job.submitted_ms if job.runs else None
    found = JobFigures(
        None if job.ended_ms is None else job.ended_ms - job.submitted_ms,
        waited_ms,
        over_ms - job.submitted_ms - held_ms,
        held_ms,
        0,
    )
    for run in job.runs:
        _add_run(found, run, end_ms)
    return found


def _add_run(found: JobFigures, run: RunRecord, end_ms: int) -> None:
    since, until = run.placed_ms, end_ms if run.ended_ms is None else run.ended_ms
    started, safe = kept_spell(run, end_ms)
    found.held_gpu_ms += run.gpu_milli * (until - since) // 1000
    found.starting_gpu_ms += run.gpu_milli * (started - since) // 1000
    found.kept_ms += safe - started
    found.kept_gpu_ms += working_milli(run) * (safe - started) // 1000
    found.lost_gpu_ms += run.lost_gpu_ms
    if run.started_ms is not None:
        found.busy_gpu_ms += working_milli(run) * (until - started) // 1000
    if run.cause:
        if run.cause in _PREEMPTING:
            found.preemptions += 1
        else:
            found.evictions += 1
    if run.failure not in _NO_FAILURE:
        found.failures += 1


def working_milli(run: RunRecord) -> int:
    """The GPUs that work in an attempt: all except spares."""
    if not run.spares:
        return run.gpu_milli
    return run.gpu_milli * (len(run.nodes) - run.spares) // len(run.nodes)


def kept_spell(run: RunRecord, end_ms: int) -> Spell:
    """When an attempt did work that was kept. Lost work is always at its end, after the last checkpoint."""
    until = end_ms if run.ended_ms is None else run.ended_ms
    if run.started_ms is None:
        return until, until
    lost_ms = -(-run.lost_gpu_ms * 1000 // run.gpu_milli) if run.lost_gpu_ms and run.gpu_milli else 0
    return run.started_ms, max(run.started_ms, until - lost_ms)


def held_spells(job: JobHistory, end_ms: int) -> list[Spell]:
    """When at least one gang of the job had seats: disjoint and in order."""
    spells = [(run.placed_ms, end_ms if run.ended_ms is None else run.ended_ms) for run in job.runs]
    if len(spells) < 2:
        return spells
    spells.sort()
    merged = [spells[0]]
    for since, until in spells[1:]:
        if since > merged[-1][1]:
            merged.append((since, until))
        elif until > merged[-1][1]:
            merged[-1] = (merged[-1][0], until)
    return merged


def line_spells(job: JobHistory, end_ms: int) -> list[Spell]:
    """When the job had not ended and had no seats."""
    since, found = job.submitted_ms, []
    for placed, left in held_spells(job, end_ms):
        if placed > since:
            found.append((since, placed))
        since = left
    until = end_ms if job.ended_ms is None else job.ended_ms
    if until > since:
        found.append((since, until))
    return found


def line_milli_spells(job: JobHistory, end_ms: int, spells: list[Spell]) -> list[tuple[int, int, int]]:
    """(since, until, GPU-milli queued): each gang that has not ended and has no seats counts with an equal part.

    ``spells`` are those of ``line_spells``, which are the result for a job of one gang.
    """
    if job.gangs == 1:
        return [(since, until, job.gpu_milli) for since, until in spells]
    over_ms = end_ms if job.ended_ms is None else job.ended_ms
    each = job.gpu_milli // job.gangs
    by_gang: dict[str, list[RunRecord]] = {}
    for run in job.runs:
        by_gang.setdefault(run.gang, []).append(run)
    found = []
    if job.gangs > len(by_gang):
        found.append((job.submitted_ms, over_ms, each * (job.gangs - len(by_gang))))
    for runs in by_gang.values():
        since = job.submitted_ms
        for run in runs:
            if run.placed_ms > since:
                found.append((since, run.placed_ms, each))
            since = end_ms if run.ended_ms is None else run.ended_ms
        if since < over_ms and not runs[-1].is_last:
            found.append((since, over_ms, each))
    return found


def size_class(gpu_milli: int) -> str:
    """The size class of a job by the GPUs it requests."""
    gpus = -(-gpu_milli // 1000)
    for label, most in SIZE_CLASSES:
        if gpus <= most:
            return label
    return LARGEST_CLASS
