"""A workload as every reader gives it: jobs in order of submission, and the cluster they were made for.

Does not know files or the engine. Times are milliseconds since the first submission, or since the zero of the source
(1970 for calendar dates); a reader does not shift them, ``from_zero`` does.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class TraceJob(Struct, frozen=True, gc=False, kw_only=True):
    """One job of a workload. ``work_ms``: its run time on the requested resources, undisturbed."""

    id: str
    submit_ms: int
    work_ms: int
    gpus: int  # in total; 0: a job without GPUs
    gpu_milli: int = 1000  # of each GPU; less than 1000 is a share of one
    models: tuple[str, ...] = ()  # GPU models it accepts; empty: any
    cpu_milli: int = 0
    memory_mib: int = 0
    team: str = ""
    user: str = ""
    application: str = ""
    kind: str = ""  # class of work as the source names it: a quality of service, a phase of development
    priority: int = 0
    limit_ms: int | None = None  # time limit that the user gave
    status: str = ""  # how it ended when it was recorded, as the source names it
    started_ms: int | None = None  # when it started when it was recorded
    nodes: int = 0  # over how many nodes it was spread when it was recorded; 0: not known


class TraceNodes(Struct, frozen=True, gc=False):
    """A number of equal nodes of the cluster of a workload."""

    count: int
    gpus: int
    model: str = ""
    vram_mib: int = 0  # 0: not known
    cpu_milli: int = 0  # 0: not known
    memory_mib: int = 0
    names: tuple[str, ...] = ()  # one each, where the source names them


class Trace(Struct, frozen=True, gc=False):
    """A workload: jobs sorted by ``(submit_ms, position in the source)``."""

    name: str
    jobs: tuple[TraceJob, ...]
    nodes: tuple[TraceNodes, ...] = ()
    skipped: tuple[tuple[str, int], ...] = ()  # reasons why rows of the source were left out, and how many of each
    notes: tuple[str, ...] = ()  # assumptions of the reader, one sentence each


def from_zero(trace: Trace) -> Trace:
    """The same workload with its first submission at 0."""
    zero = min((job.submit_ms for job in trace.jobs), default=0)
    return replace(trace, jobs=tuple(_earlier(job, zero) for job in trace.jobs))


def _earlier(job: TraceJob, by_ms: int) -> TraceJob:
    started_ms = None if job.started_ms is None else job.started_ms - by_ms
    return replace(job, submit_ms=job.submit_ms - by_ms, started_ms=started_ms)
