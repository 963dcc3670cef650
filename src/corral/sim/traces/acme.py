"""Shanghai AI Lab's Acme 2023: ``trace_seren.csv`` and ``trace_kalos.csv``.

Knows the columns that both have and those only Kalos has. Work is from start to end: the ``duration`` column of
Kalos runs from submission. Memory is per pod, and a job has one pod per node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.sim.traces.helios import read_slurm_log
from corral.sim.traces.text_rows import TraceRow
from corral.sim.traces.trace import Trace

_COLUMNS = (
    "job_id", "user", "node_num", "gpu_num", "cpu_num", "type", "state", "submit_time", "start_time", "end_time",
)  # fmt: skip


def read_acme(path: Path, name: str = "acme", with_cpu_jobs: bool = False) -> Trace:
    def more(row: TraceRow) -> dict[str, Any]:
        nodes = row.whole("node_num")
        return {"memory_mib": _memory_mib(row, nodes), "kind": row.word("type"), "nodes": nodes}

    return read_slurm_log(path, name, _COLUMNS, with_cpu_jobs, more)


def _memory_mib(row: TraceRow, pods: int) -> int:
    """0 (unknown) if the source does not say."""
    if not row.has("mem_per_pod_GB"):
        return 0
    return int(row.number("mem_per_pod_GB") * 10**9) * pods // 2**20
