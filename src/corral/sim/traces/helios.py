"""SenseTime Helios 2020: the ``cluster_log.csv`` of one cluster, as Slurm recorded it.

A job may never have started, and half of the jobs have no GPUs. Work is from start to end, not the
``duration`` column, which sources define differently. Dates have no zone and are taken to be UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from corral.sim.traces.text_rows import Gathering, TraceRow, read_rows
from corral.sim.traces.trace import Trace, TraceJob

_COLUMNS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "state", "submit_time", "start_time", "end_time")

NO_GPUS = "requests no GPU"
NEVER_STARTED = "never started"
NO_END = "has no end"


def read_helios(path: Path, name: str = "helios", with_cpu_jobs: bool = False) -> Trace:
    def more(row: TraceRow) -> dict[str, Any]:
        return {"team": row.text("vc"), "nodes": row.whole("node_num") if row.has("node_num") else 0}

    return read_slurm_log(path, name, _COLUMNS, with_cpu_jobs, more)


def read_slurm_log(
    path: Path, name: str, columns: Sequence[str], with_cpu_jobs: bool, more: Callable[[TraceRow], dict[str, Any]]
) -> Trace:
    """A log with the columns that Slurm's accounting gives; ``more``: what this source knows besides."""
    gathering = Gathering(name, path)
    for row in read_rows(path, columns):
        if reason := unusable(row, with_cpu_jobs):
            gathering.skip(reason)
            continue
        started_ms = row.moment_ms("start_time")
        job = TraceJob(
            id=row.text("job_id"),
            submit_ms=row.moment_ms("submit_time"),
            work_ms=work_ms(row, started_ms),
            gpus=row.whole("gpu_num"),
            cpu_milli=row.whole("cpu_num") * 1000,
            user=row.text("user"),
            status=row.text("state"),
            started_ms=started_ms,
            **more(row),
        )
        gathering.take(row, "job_id", job)
    return gathering.trace()


def unusable(row: TraceRow, with_cpu_jobs: bool) -> str | None:
    """Why a valid row is not a job of the workload."""
    if not with_cpu_jobs and row.whole("gpu_num") == 0:
        return NO_GPUS
    if not row.has("start_time"):
        return NEVER_STARTED
    if not row.has("end_time"):
        return NO_END
    return None


def work_ms(row: TraceRow, started_ms: int) -> int:
    found = row.moment_ms("end_time") - started_ms
    if found < 0:
        raise row.wrong("end_time", f"is {row.word('end_time')}, before start_time. Correct it or remove the row.")
    return found
