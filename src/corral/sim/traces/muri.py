"""Workloads of the Muri and Tiresias simulators: one layout, in milliseconds there and in seconds here.

Knows how each defines the work of a job; does not know their schedulers.
"""

from __future__ import annotations

from pathlib import Path

from corral.sim.traces.text_rows import Gathering, read_rows
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes

_MURI = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "iteration_time", "priority")
_TIRESIAS = ("job_id", "num_gpu", "submit_time", "model_name", "duration")

# Muri adds 1.5 % to the measured time of every iteration.
_WORK_PER_MILLE = 1015
_MURI_NODES = TraceNodes(8, 8)


def read_muri(path: Path, name: str = "muri", per_ms: int = 1) -> Trace:
    """Times in milliseconds. Work is the number of iterations times the time of one; not the ``duration`` column.

    ``per_ms`` 1000 gives every time in microseconds, for results that rounding would change.
    """
    gathering = Gathering(name, path)
    for row in read_rows(path, _MURI):
        iterations = row.whole("iterations")
        iteration_us = row.ms("iteration_time")  # it is in milliseconds, so a thousandth of each
        job = TraceJob(
            id=row.text("job_id"),
            submit_ms=row.ms("submit_time", unit_ms=1) * per_ms,
            work_ms=(iterations * iteration_us * _WORK_PER_MILLE * per_ms + 500_000) // 1_000_000,
            gpus=row.whole("num_gpu", least=1),
            application=row.text("model_name"),
            priority=row.whole("priority"),
        )
        gathering.take(row, "job_id", job)
    return gathering.trace([_MURI_NODES])


def read_tiresias(path: Path, name: str = "tiresias") -> Trace:
    """Times in seconds; work is the ``duration`` column."""
    gathering = Gathering(name, path)
    for row in read_rows(path, _TIRESIAS):
        job = TraceJob(
            id=row.text("job_id"),
            submit_ms=row.ms("submit_time"),
            work_ms=row.ms("duration"),
            gpus=row.whole("num_gpu", least=1),
            application=row.text("model_name"),
        )
        gathering.take(row, "job_id", job)
    return gathering.trace()
