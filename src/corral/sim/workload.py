"""From a workload to submissions: the request of each job, and the estimate of its length.

Knows traces and job specs. The true length of a job is known here and in ``world``, never to a policy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from msgspec import Struct

from corral.core.cluster.resources import CPU_MILLI, GPU_MILLI, MEMORY_MIB, Amounts, Demand, TaskDemand, amounts
from corral.core.model import GangSpec, JobSpec, QueueSpec
from corral.sim.cluster_spec import VRAM_MIB, ClusterSpec
from corral.sim.run import Arrival
from corral.sim.traces.trace import Trace, TraceJob

HOUR_MS = 3_600_000
DEFAULT_QUEUE = "all"
TIME_SHARE = QueueSpec(name=DEFAULT_QUEUE).time_share  # that of every queue that does not set it

#: The estimate of a job's length that the engine gets; None: no estimate.
Estimate = Callable[[TraceJob], int | None]


def exact(job: TraceJob) -> int | None:
    """An oracle: the job's true length."""
    return max(1, job.work_ms)


def whole_hours(job: TraceJob) -> int | None:
    """The true length, rounded up to hours."""
    return max(1, -(-job.work_ms // HOUR_MS)) * HOUR_MS


def as_stated(job: TraceJob) -> int | None:
    """The time limit that the user gave, if there is one."""
    return job.limit_ms


ESTIMATES: dict[str, Estimate | None] = {"exact": exact, "hours": whole_hours, "stated": as_stated, "none": None}


class SubmissionTerms(Struct, frozen=True):
    """How jobs of a trace are submitted."""

    estimate: Estimate | None = None
    whole_nodes: bool = False  # a job larger than a node takes whole nodes
    checkpoints: bool = True  # whether jobs save when they are preempted
    grace_ms: int = 30_000
    restart_cost_ms: int = 0
    ends_at_limit: bool = False  # a time limit is enforced, not only used as an estimate


DEFAULT_TERMS = SubmissionTerms()


def arrivals_of(trace: Trace, cluster: ClusterSpec, terms: SubmissionTerms = DEFAULT_TERMS) -> list[Arrival]:
    """The jobs of a trace as submissions, in its order.

    To the engine, time 0 means never: a workload that begins at 0 begins a second later.
    """
    later_ms = 1_000 if trace.jobs and trace.jobs[0].submit_ms <= 0 else 0
    # jobs with equal requests share one value: a large workload has few different ones
    gangs: dict[tuple[object, ...], tuple[GangSpec, ...]] = {}
    found = []
    for job in trace.jobs:
        asked = (job.gpus, job.gpu_milli, job.models, job.cpu_milli, job.memory_mib)
        if asked not in gangs:
            gangs[asked] = (GangSpec(demand_of(job, cluster, terms.whole_nodes)),)
        found.append(_arrival(job, gangs[asked], terms, later_ms))
    return found


def queues_of(trace: Trace, time_share: int = TIME_SHARE, guarantees: dict[str, int] | None = None) -> list[QueueSpec]:
    """One queue per team, all of equal weight; ``guarantees`` in GPUs."""
    names = sorted({queue_of(job) for job in trace.jobs})
    guaranteed = guarantees or {}
    return [QueueSpec(name=name, time_share=time_share, guarantee=_gpus(guaranteed.get(name))) for name in names]


def _gpus(count: int | None) -> Amounts:
    return () if count is None else amounts({GPU_MILLI: 1000 * count})


def queue_of(job: TraceJob) -> str:
    """Names of queues are paths in a tree: a slash in the name of a team is replaced."""
    return job.team.replace("/", "-") or DEFAULT_QUEUE


def _arrival(job: TraceJob, gangs: tuple[GangSpec, ...], terms: SubmissionTerms, later_ms: int) -> Arrival:
    estimate = None if terms.estimate is None else terms.estimate(job)
    spec = JobSpec(
        queue=queue_of(job),
        gangs=gangs,
        name=job.application,
        priority=job.priority,
        estimate_ms=estimate,
        time_limit_ms=job.limit_ms if terms.ends_at_limit else None,
        checkpoints=terms.checkpoints,
        grace_ms=terms.grace_ms,
        restart_cost_ms=terms.restart_cost_ms,
    )
    return Arrival(job.id, job.submit_ms + later_ms, spec, job.user or job.team or "someone", max(1, job.work_ms))


def demand_of(job: TraceJob, cluster: ClusterSpec, whole_nodes: bool = False) -> Demand:
    """One task if the job fits on a node, else as many equal tasks as needed."""
    largest = cluster.gpus_a_node
    tasks = 1
    if job.gpus > largest:
        each = largest if whole_nodes or job.gpus % largest == 0 else gcd(job.gpus, largest)
        tasks = -(-job.gpus // each)
    else:
        each = job.gpus
    others = {CPU_MILLI: -(-job.cpu_milli // tasks), MEMORY_MIB: -(-job.memory_mib // tasks)}
    stated = amounts({name: amount for name, amount in others.items() if amount and _is_known(cluster, name)})
    if job.gpus == 1 and job.gpu_milli < 1000:
        vram = min((gpu.vram_mib for node in cluster.nodes for gpu in node.gpus), default=VRAM_MIB)
        slice_mib = max(1, -(-job.gpu_milli * vram // 1000))
        return Demand(task=TaskDemand(slice_mib=slice_mib, models=job.models, amounts=stated))
    return Demand(task=TaskDemand(gpus=each, models=job.models, amounts=stated), tasks=tasks)


def _is_known(cluster: ClusterSpec, name: str) -> bool:
    return any(known == name for node in cluster.nodes[:1] for known, _ in node.amounts)
