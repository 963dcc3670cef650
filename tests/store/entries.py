"""Entries to write, for tests that do not care what is in them."""

from __future__ import annotations

from corral.core import events as e
from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.model import GangSpec, JobSpec
from corral.core.work import Work
from corral.store.journal import Entry
from corral.wire.codec import encode


def submission(number: int, user: str = "ann", queue: str = "lab/red", request: str = "", **spec: object) -> Entry:
    """A job as it usually is: one gang of four GPUs with a command and some environment."""
    demand = Demand(task=TaskDemand(gpus=4, amounts=(("cpu_milli", 8000), ("memory_mib", 65536))))
    work = Work(
        command=("python", "train.py", "--config", "base.yaml"),
        env=(("NCCL_DEBUG", "WARN"), ("OMP_NUM_THREADS", "8")),
        directory="/home/ann/project",
    )
    gangs = (GangSpec(demand, work=work),)
    job = JobSpec(queue=queue, gangs=gangs, name=f"train-{number % 100}", **spec)  # type: ignore[arg-type]
    event = e.JobSubmitted(1_700_000_000_000 + number, str(number), job, user)
    return Entry(event.at_ms, user, encode(event), request)


def entry(number: int, actor: str = "ann", request: str = "") -> Entry:
    """A small one, that changes nothing that is looked up."""
    return Entry(number, actor, encode(e.NodeDrained(number, f"n{number}")), request)
