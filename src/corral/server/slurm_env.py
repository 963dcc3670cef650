"""The environment variables of Slurm, for jobs that ask for them (``compat: slurm``).

Knows the names that scripts written for Slurm read. Only on request: some libraries change behaviour when they are set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, amount_of
from corral.core.model import Gang, Job
from corral.runtime.hostlist import compress


def script_env(job: Job, gang: Gang, index: int | None, task: int, stated: Mapping[str, str]) -> dict[str, str]:
    """Variables of a script on the first node of a job (``launch: first``). Options that the script did not give have
    no variable, as in Slurm; ``stated`` are those that it gave."""
    nodes = list(dict.fromkeys(seat.node for seat in gang.seats))
    tasks = int(stated.get("SLURM_NTASKS", "") or len(nodes))
    each, rest = divmod(tasks, len(nodes))
    counts = _abridged([each + (n < rest) for n in range(len(nodes))])
    found = slurm_env(job, gang, index, [1] * len(gang.seats))
    for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"):
        del found[name]
    listed = compress(nodes)
    here = sum(seat.node == gang.seats[task].node for seat in gang.seats)
    cpus = str((amount_of(gang.amounts, CPU_MILLI) or 1000) // 1000 * here)
    found |= {
        "SLURM_JOB_NODELIST": listed,
        "SLURM_NODELIST": listed,
        "SLURM_TASKS_PER_NODE": counts,
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": f"{cpus}(x{len(nodes)})" if len(nodes) > 1 else cpus,
        "SLURMD_NODENAME": gang.seats[task].node,
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_JOB_USER": job.user,
        "SLURM_SUBMIT_DIR": _directory(job, gang),
        "SLURM_TOPOLOGY_ADDR": gang.seats[task].node,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_JOB_PARTITION": dict(job.spec.labels).get("slurm.partition", job.spec.queue),
        "SLURM_JOB_ACCOUNT": dict(job.spec.labels).get("slurm.account", found["SLURM_JOB_ACCOUNT"]),
        "SLURM_JOB_QOS": dict(job.spec.labels).get("slurm.qos", "normal"),
    }
    if gang.demand.task.gpus:
        count = gang.demand.task.gpus * here
        found |= {"SLURM_GPUS_ON_NODE": str(count), "SLURM_JOB_GPUS": ",".join(map(str, range(count)))}
    return {name: stated.get(name, value) for name, value in found.items()}


def _directory(job: Job, gang: Gang) -> str:
    """Where it was submitted: its directory, unless ``--chdir`` named another one, which its script states then."""
    works = (spec.work for spec in job.spec.gangs if spec.role == gang.role)
    return next((work.directory for work in works if work is not None), "")


def slurm_env(job: Job, gang: Gang, index: int | None, ranks: Sequence[int]) -> dict[str, str]:
    """Variables of the whole attempt. ``ranks``: processes of each task; Slurm calls the processes tasks and counts
    them by node."""
    by_node = _by_node(gang, ranks)
    tasks, listed = str(sum(ranks)), ",".join(by_node)
    found = {
        "SLURM_JOB_ID": job.id,
        "SLURM_JOBID": job.id,
        "SLURM_JOB_NAME": job.spec.name or job.id,
        "SLURM_JOB_NODELIST": listed,
        "SLURM_NODELIST": listed,
        "SLURM_JOB_NUM_NODES": str(len(by_node)),
        "SLURM_NNODES": str(len(by_node)),
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": str(max(by_node.values())),
        "SLURM_TASKS_PER_NODE": _abridged(list(by_node.values())),
        "SLURM_JOB_PARTITION": job.spec.queue,
        "SLURM_JOB_ACCOUNT": job.spec.queue.rpartition("/")[0] or job.spec.queue,
        "SLURM_JOB_QOS": "normal",
        "SLURM_RESTART_COUNT": str(gang.attempt - 1),
        "SLURM_CLUSTER_NAME": "corral",
        "SLURM_JOB_START_TIME": str(gang.placed_ms // 1000),
    }
    if job.spec.time_limit_ms is not None:
        found["SLURM_JOB_END_TIME"] = str((gang.placed_ms + job.spec.time_limit_ms) // 1000)
    if index is not None:
        array = job.spec.array
        found |= {
            "SLURM_ARRAY_JOB_ID": job.id,
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_ARRAY_TASK_COUNT": str(len(array)),
            "SLURM_ARRAY_TASK_MIN": str(min(array)),
            "SLURM_ARRAY_TASK_MAX": str(max(array)),
            "SLURM_ARRAY_TASK_STEP": str(array[1] - array[0] if len(array) > 1 else 1),
        }
    return found


class SlurmSeats:
    """The processes of an attempt on its nodes, as Slurm counts them."""

    def __init__(self, gang: Gang, ranks: Sequence[int]) -> None:
        self._gang, self._ranks = gang, ranks
        self._number = {node: n for n, node in enumerate(_by_node(gang, ranks))}
        self._seats: dict[str, int] = {}
        so_far: dict[str, int] = {}
        self._before: list[int] = []  # by task: processes of earlier tasks on the same node
        for seat, count in zip(gang.seats, ranks, strict=True):
            self._before.append(so_far.get(seat.node, 0))
            so_far[seat.node] = so_far.get(seat.node, 0) + count
            self._seats[seat.node] = self._seats.get(seat.node, 0) + 1

    def node_env(self, task: int, stated: Mapping[str, str]) -> dict[str, str]:
        """Resources of the attempt on the node of one task; values ``stated`` by the script's own directives win."""
        gang = self._gang
        here = self._seats[gang.seats[task].node]
        gpus = str(gang.demand.task.gpus * here)
        cpus = (amount_of(gang.amounts, CPU_MILLI) or 1000) // 1000
        found = {
            "SLURM_GPUS_ON_NODE": gpus,
            "SLURM_GPUS_PER_NODE": gpus,
            "SLURM_CPUS_PER_TASK": str(max(1, cpus // self._ranks[task])),
            "SLURM_CPUS_ON_NODE": str(cpus * here),
        }
        memory = amount_of(gang.amounts, MEMORY_MIB)
        if memory is not None:
            found["SLURM_MEM_PER_NODE"] = str(memory * here)
        return {name: stated.get(name, value) for name, value in found.items()}

    def process_env(self, task: int, rank: int, local: int) -> dict[str, str]:
        """The number of one process among all, and among those of its node."""
        return {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(self._before[task] + local),
            "SLURM_NODEID": str(self._number[self._gang.seats[task].node]),
        }


def _by_node(gang: Gang, ranks: Sequence[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for seat, count in zip(gang.seats, ranks, strict=True):
        found[seat.node] = found.get(seat.node, 0) + count
    return found


def _abridged(counts: Sequence[int]) -> str:
    """Counts in the notation of Slurm: 2(x3),1."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
