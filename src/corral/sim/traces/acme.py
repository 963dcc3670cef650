"""Shanghai AI Lab's Acme 2023: ``trace_seren.csv`` and ``trace_kalos.csv``.

Knows the columns that both have and those only Kalos has. Work is from start to end: the ``duration`` column of
Kalos runs from submission. Memory is per pod, and a job has one pod per node.
"""

from __future__ import annotations

from pathlib import Path

from corral.sim.traces.helios import unusable, work_ms
from corral.sim.traces.text_rows import Gathering, TraceRow, read_rows
from corral.sim.traces.trace import Trace, TraceJob

_COLUMNS = (
    "job_id",
    "user",
    "node_num",
    "gpu_num",
    "cpu_num",
    "type",
    "state",
    "submit_time",
    "start_time",
    "end_time",
)


def read_acme(path: Path, name: str = "acme", with_cpu_jobs: bool = False) -> Trace:
    gathering = Gathering(name, path)
    for row in read_rows(path, _COLUMNS):
        if reason := unusable(row, with_cpu_jobs):
            gathering.skip(reason)
            continue
        started_ms = row.moment_ms("start_time")
        nodes = row.whole("node_num")
        job = TraceJob(
            id=row.text("job_id"),
            submit_ms=row.moment_ms("submit_time"),
            work_ms=work_ms(row, started_ms),
            gpus=row.whole("gpu_num"),
            cpu_milli=row.whole("cpu_num") * 1000,
            memory_mib=_memory_mib(row, nodes),
            user=row.text("user"),
            kind=row.word("type"),
            status=row.text("state"),
            started_ms=started_ms,
            nodes=nodes,
        )
        gathering.take(row, "job_id", job)
    return gathering.trace()


def _memory_mib(row: TraceRow, pods: int) -> int:
    """0 (unknown) if the source does not say."""
    if not row.has("mem_per_pod_GB"):
        return 0
    return int(row.number("mem_per_pod_GB") * 10**9) * pods // 2**20
