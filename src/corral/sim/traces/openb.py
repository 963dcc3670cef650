"""Alibaba's cluster-trace-gpu-v2023 (openb): pods with parts of GPUs and with models, and the nodes by name.

Knows the two files and the times of a pod; does not know the policies that were tried on them. A pod
without GPUs is a job like any other.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from corral.sim.traces.text_rows import Gathering, TraceRow, read_rows
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes

_POD = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_NODE = ("sn", "cpu_milli", "memory_mib", "gpu", "model")

_TIMELESS = "The source has no times: every pod is submitted at 0 in the order of the file, with work of 0."
_NEVER_PLACED = "Work of pods that were never scheduled is counted from their creation to their deletion."


def read_openb(pods: Path, nodes: Path | None = None, name: str = "openb") -> Trace:
    """Pods of one workload variant; with the node list, the cluster too."""
    gathering = Gathering(name, pods)
    timeless = True
    for row in read_rows(pods, _POD):
        timeless = timeless and not any(field in row.values for field in _TIMES)
        gathering.take(row, "name", _timeless_pod(row) if timeless else _pod(row))
    return gathering.trace(read_openb_nodes(nodes) if nodes else (), [_TIMELESS if timeless else _NEVER_PLACED])


def read_openb_nodes(path: Path) -> tuple[TraceNodes, ...]:
    """Equal adjacent rows become one entry, so that the order of the file is kept."""
    rows = [_node(row) for row in read_rows(path, _NODE)]
    alike = groupby(rows, key=lambda found: found[1])
    groups = [([name for name, _ in group], kind) for kind, group in alike]
    return tuple(
        TraceNodes(len(names), gpus, model, 0, cpu_milli, memory_mib, tuple(names))
        for names, (gpus, model, cpu_milli, memory_mib) in groups
    )


def _pod(row: TraceRow) -> TraceJob:
    submit_ms = row.ms("creation_time")
    started_ms = row.ms("scheduled_time") if row.has("scheduled_time") else None
    work_ms = row.ms("deletion_time") - (submit_ms if started_ms is None else started_ms)
    if work_ms < 0:
        why = f"is {row.word('deletion_time')}, before the pod began. Correct it or remove the row."
        raise row.wrong("deletion_time", why)
    return _demand(row, submit_ms, work_ms, started_ms)


def _timeless_pod(row: TraceRow) -> TraceJob:
    return _demand(row, 0, 0, None)


def _demand(row: TraceRow, submit_ms: int, work_ms: int, started_ms: int | None) -> TraceJob:
    gpus = row.whole("num_gpu")
    gpu_milli = row.whole("gpu_milli")
    if gpus and not 1 <= gpu_milli <= 1000:
        raise row.wrong("gpu_milli", f"is {gpu_milli}, but a pod takes between 1 and 1000 of each of its GPUs.")
    if gpus > 1 and gpu_milli < 1000:
        raise row.wrong("gpu_milli", f"is {gpu_milli}, but only a pod with one GPU can take a part of it.")
    return TraceJob(
        id=row.text("name"),
        submit_ms=submit_ms,
        work_ms=work_ms,
        gpus=gpus,
        gpu_milli=gpu_milli if gpus else 1000,
        models=tuple(filter(None, row.word("gpu_spec").split("|"))),
        cpu_milli=row.whole("cpu_milli"),
        memory_mib=row.whole("memory_mib"),
        kind=row.word("qos"),
        status=row.word("pod_phase"),
        started_ms=started_ms,
    )


def _node(row: TraceRow) -> tuple[str, tuple[int, str, int, int]]:
    kind = (row.whole("gpu"), row.word("model"), row.whole("cpu_milli"), row.whole("memory_mib"))
    return row.text("sn"), kind
