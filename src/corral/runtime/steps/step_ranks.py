"""The processes of a step: which rank runs on which seat, with which GPUs and variables.

Pure. Two ways to number them: as torch does, and as Slurm does.
"""

from __future__ import annotations

from itertools import groupby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class SeatShare:
    """What a step was given of one seat, as the coordinator answers it."""

    def __init__(self, said: Sequence[Any]) -> None:
        self.seat: int = said[0]
        self.node: str = said[1]
        self.tasks: int = said[2]
        self.gpus: list[str] = said[3]
        self.cpus: int = said[4]
        self.memory_mib: int = said[5]


class Rank:
    def __init__(self, rank: int, local: int, group: int, share: SeatShare, gpus: list[str]) -> None:
        self.rank = rank
        self.local = local
        self.group = group
        self.share = share
        self.gpus = gpus


def ranks_of(shares: list[SeatShare], gpus_per_task: int, is_cyclic: bool = False) -> list[list[Rank]]:
    """For each share, its processes. Consecutive ranks are on one seat, or with ``is_cyclic`` on different ones."""
    orders: list[list[int]] = [[] for _ in shares]
    if is_cyclic:
        left, rank = [share.tasks for share in shares], 0
        while any(left):
            for group in range(len(shares)):
                if left[group]:
                    orders[group].append(rank)
                    left[group] -= 1
                    rank += 1
    else:
        rank = 0
        for group, share in enumerate(shares):
            orders[group] = list(range(rank, rank + share.tasks))
            rank += share.tasks
    found = []
    for group, share in enumerate(shares):
        own = []
        for local, rank in enumerate(orders[group]):
            begin = local * gpus_per_task
            gpus = share.gpus[begin : begin + gpus_per_task] if gpus_per_task else share.gpus
            own.append(Rank(rank, local, group, share, gpus))
        found.append(own)
    return found


def torch_env(rank: Rank, shares: list[SeatShare], step: str) -> dict[str, str]:
    return {
        "CORRAL_STEP": step,
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local),
        "WORLD_SIZE": str(sum(share.tasks for share in shares)),
        "LOCAL_WORLD_SIZE": str(rank.share.tasks),
        "GROUP_RANK": str(rank.group),
        "GROUP_WORLD_SIZE": str(len(shares)),
        "NODE_RANK": str(rank.group),
    }


def slurm_step_env(rank: Rank, shares: list[SeatShare], step: str, cpus_per_task: int) -> dict[str, str]:
    """What srun sets for a task."""
    tasks, nodes = str(sum(share.tasks for share in shares)), str(len(shares))
    counts = abridged([share.tasks for share in shares])
    env = {
        "CORRAL_STEP": step,
        "SLURM_STEP_ID": step,
        "SLURM_STEPID": step,
        "SLURM_STEP_NODELIST": ",".join(share.node for share in shares),
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_NNODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_TASKS_PER_NODE": counts,
        "SLURM_PROCID": str(rank.rank),
        "SLURM_LOCALID": str(rank.local),
        "SLURM_NODEID": str(rank.group),
        "SLURMD_NODENAME": rank.share.node,
        "SLURM_TOPOLOGY_ADDR": rank.share.node,
        "SLURM_CPUS_ON_NODE": str(rank.share.cpus),
        "SLURM_CPU_BIND": "quiet,none",
    }
    if cpus_per_task:
        env["SLURM_CPUS_PER_TASK"] = str(cpus_per_task)
    if rank.share.gpus:
        env["SLURM_STEP_GPUS"] = ",".join(str(n) for n in range(len(rank.share.gpus)))
        env["SLURM_GPUS_ON_NODE"] = str(len(rank.share.gpus))
    return env


def abridged(counts: Sequence[int]) -> str:
    """Counts in the notation of Slurm: 2(x3),1."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
