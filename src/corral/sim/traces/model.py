"""A workload as every reader gives it: jobs in order of submission, and the cluster they were made for.

Knows nothing of files and nothing of the engine. Times are milliseconds since the first submission or since
whatever zero the source has (1970 for calendar dates); a reader never shifts them silently, ``from_zero`` does
when asked.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class TraceJob(Struct, frozen=True, gc=False, kw_only=True):
    """One job of a workload. ``work_ms`` is how long it runs on what it asks for, undisturbed."""

    id: str
    submit_ms: int
    work_ms: int
    gpus: int  # in all; 0 is a job without GPUs
    gpu_milli: int = 1000  # of each GPU; less than 1000 is a share of one
    models: tuple[str, ...] = ()  # GPU models it accepts; empty: any
    cpu_milli: int = 0
    memory_mib: int = 0
    team: str = ""
    user: str = ""
    application: str = ""
    kind: str = ""  # class of work in the source's word: a quality of service, a phase of development
    priority: int = 0
    limit_ms: int | None = None  # what the user stated as the longest run
    status: str = ""  # how it ended when it was recorded, in the source's word
    started_ms: int | None = None  # when it started when it was recorded
    nodes: int = 0  # over how many nodes it was spread when it was recorded; 0: not known


class TraceNodes(Struct, frozen=True, gc=False):
    """So many equal nodes of the cluster that a workload belongs to."""

    count: int
    gpus: int
    model: str = ""
    vram_mib: int = 0  # 0: not known
    cpu_milli: int = 0  # 0: not known
    memory_mib: int = 0
    names: tuple[str, ...] = ()  # one each, where the source names them


class Trace(Struct, frozen=True, gc=False):
    """A workload: jobs sorted by ``(submit_ms, place in the source)``."""

    name: str
    jobs: tuple[TraceJob, ...]
    nodes: tuple[TraceNodes, ...] = ()
    skipped: tuple[tuple[str, int], ...] = ()  # why rows of the source are no jobs here, and how many of each
    notes: tuple[str, ...] = ()  # what the reader had to assume, a sentence each


def from_zero(trace: Trace) -> Trace:
    """The same workload with its first submission at 0."""
    zero = min((job.submit_ms for job in trace.jobs), default=0)
    return replace(trace, jobs=tuple(_earlier(job, zero) for job in trace.jobs))


def _earlier(job: TraceJob, by_ms: int) -> TraceJob:
    started_ms = None if job.started_ms is None else job.started_ms - by_ms
    return replace(job, submit_ms=job.submit_ms - by_ms, started_ms=started_ms)
