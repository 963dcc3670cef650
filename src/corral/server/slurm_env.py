"""The variables of Slurm, for jobs that ask for them (``compat: slurm``).

Knows names that scripts written for Slurm read. Only on request: some libraries behave otherwise when they see them.
"""

from __future__ import annotations

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, amount_of
from corral.core.model import Gang, Job


def slurm_env(job: Job, gang: Gang, index: int | None, ranks: int) -> dict[str, str]:
    """Of the attempt as a whole; the rank of a process is added by whoever starts it."""
    nodes = list(dict.fromkeys(seat.node for seat in gang.seats))
    per_task, tasks = ranks // max(1, len(gang.seats)), str(ranks)
    gpus, listed = str(gang.demand.task.gpus), ",".join(nodes)
    cpus = str((amount_of(gang.amounts, CPU_MILLI) or 1000) // 1000)
    found = {
        "SLURM_JOB_ID": job.id, "SLURM_JOBID": job.id, "SLURM_JOB_NAME": job.spec.name or job.id,
        "SLURM_JOB_NODELIST": listed, "SLURM_NODELIST": listed,
        "SLURM_JOB_NUM_NODES": str(len(nodes)), "SLURM_NNODES": str(len(nodes)),
        "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks, "SLURM_NTASKS_PER_NODE": str(per_task),
        "SLURM_TASKS_PER_NODE": f"{per_task}(x{len(nodes)})" if len(nodes) > 1 else str(per_task),
        "SLURM_GPUS_ON_NODE": gpus, "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_CPUS_PER_TASK": cpus, "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_PARTITION": job.spec.queue, "SLURM_JOB_ACCOUNT": job.spec.queue.rpartition("/")[0] or job.spec.queue,
        "SLURM_JOB_QOS": "normal", "SLURM_RESTART_COUNT": str(gang.attempt - 1), "SLURM_CLUSTER_NAME": "corral",
        "SLURM_JOB_START_TIME": str(gang.placed_ms // 1000),
    }  # fmt: skip
    memory = amount_of(gang.amounts, MEMORY_MIB)
    if memory is not None:
        found["SLURM_MEM_PER_NODE"] = str(memory)
    if job.spec.time_limit_ms is not None:
        found["SLURM_JOB_END_TIME"] = str((gang.placed_ms + job.spec.time_limit_ms) // 1000)
    if index is not None:
        array = job.spec.array
        found |= {
            "SLURM_ARRAY_JOB_ID": job.id, "SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_TASK_COUNT": str(len(array)),
            "SLURM_ARRAY_TASK_MIN": str(min(array)), "SLURM_ARRAY_TASK_MAX": str(max(array)),
            "SLURM_ARRAY_TASK_STEP": str(array[1] - array[0] if len(array) > 1 else 1),
        }  # fmt: skip
    return found
