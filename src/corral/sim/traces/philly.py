"""Microsoft Philly, cleaned: all of it or one virtual cluster, and the two slices with their clusters.

Knows two layouts and tells them apart by their header: ``timestamp,duration,num_gpus,gpu_time,cluster`` (dates, no
ids) and ``job_id,vc,num_gpu,submit_time,duration`` (seconds). Virtual clusters are teams; their ids are text.
"""

from __future__ import annotations

from pathlib import Path

from corral.sim.traces.text_rows import Gathering, TraceError, TraceRow, UnknownTrace, nearest, opened, read_rows
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes

# The slices were cut for clusters of these sizes: nodes of 8 GPUs, by virtual cluster.
_SLICE_NODES = {"11cb48": 5, "6c71a0": 8}

_WHOLE = ("timestamp", "duration", "num_gpus", "cluster")
_SLICE = ("job_id", "vc", "num_gpu", "submit_time", "duration")


def read_philly(path: Path, name: str = "philly", cluster: str | None = None) -> Trace:
    """All jobs, or those of one virtual cluster."""
    sliced = _is_slice(path)
    column, job_of = ("vc", _slice_job) if sliced else ("cluster", _whole_job)
    gathering = Gathering(name, path)
    clusters: set[str] = set()
    for place, row in enumerate(read_rows(path, _SLICE if sliced else _WHOLE)):
        clusters.add(row.word(column))
        if cluster is None or row.word(column) == cluster:
            gathering.take(row, "job_id", job_of(row, place))
    if cluster is not None and cluster not in clusters:
        raise UnknownTrace(name, f"{path} has no virtual cluster {cluster!r}.{nearest(cluster, clusters)}")
    return gathering.trace(_slice_nodes(clusters) if sliced else ())


def virtual_clusters(path: Path) -> list[str]:
    """The virtual clusters in a file, in order of their names."""
    column = "vc" if _is_slice(path) else "cluster"
    return sorted({row.word(column) for row in read_rows(path, [column])})


def _is_slice(path: Path) -> bool:
    with opened(path) as text:
        first = text.readline()
    if not first.strip():
        raise TraceError(str(path), 0, "", "is empty. The first line must name the columns.")
    return "submit_time" in first


def _whole_job(row: TraceRow, place: int) -> TraceJob:
    return TraceJob(
        id=str(place),  # the source has none: the position in the whole file, for every virtual cluster
        submit_ms=row.moment_ms("timestamp"),
        work_ms=row.ms("duration"),
        gpus=row.whole("num_gpus", least=1),
        team=row.text("cluster"),
    )


def _slice_job(row: TraceRow, _place: int) -> TraceJob:
    return TraceJob(
        id=row.text("job_id"),
        submit_ms=row.ms("submit_time"),
        work_ms=row.ms("duration"),
        gpus=row.whole("num_gpu", least=1),
        team=row.text("vc"),
    )


def _slice_nodes(clusters: set[str]) -> tuple[TraceNodes, ...]:
    counts = [_SLICE_NODES[cluster] for cluster in sorted(clusters) if cluster in _SLICE_NODES]
    return tuple(TraceNodes(count, 8) for count in counts)
