"""From a ``JobSpec`` to its canonical document: ``parse_job`` reads it back.

Contains only what differs from the defaults. A gang without work (in simulations) has no command and cannot be parsed.
"""

from __future__ import annotations

from typing import Any

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Demand, TaskDemand
from corral.core.gang_id import MAIN
from corral.core.model import GangSpec, JobSpec
from corral.core.work import Work
from corral.wire.document.key_table import KeyTable
from corral.wire.job.keys import DISK_MIB, GANG_KEYS, GPU_KEYS, JOB_KEYS

_JOB_DEFAULTS = JobSpec(queue="", gangs=())
_WORK_DEFAULTS = Work(command=())
_DEMAND_DEFAULTS = Demand(task=TaskDemand())
_AMOUNTS = {CPU_MILLI: "cpus", MEMORY_MIB: "memory", DISK_MIB: "disk"}


def write_job(spec: JobSpec) -> dict[str, Any]:
    document = _differing(spec, _JOB_DEFAULTS, JOB_KEYS)
    if spec.array:
        document["array"] = JOB_KEYS.by_name["array"].kind.write((spec.array, spec.array_parallel))
    if len(spec.gangs) == 1 and spec.gangs[0].role == MAIN:
        return document | _gang(spec.gangs[0])
    return document | {"gangs": [{"role": gang.role} | _gang(gang) for gang in spec.gangs]}


def _differing(stated: object, usual: object, table: KeyTable) -> dict[str, Any]:
    """Keys of fields that differ from the default."""
    found = {}
    for key in table.keys:
        if key.into and hasattr(stated, key.into):
            value = getattr(stated, key.into)
            if value != getattr(usual, key.into):
                found[key.name] = key.kind.write(value)
    return found


def _gang(gang: GangSpec) -> dict[str, Any]:
    demand, kinds = gang.demand, {key.name: key.kind for key in GANG_KEYS.keys}
    written = _differing(gang.work, _WORK_DEFAULTS, GANG_KEYS) if gang.work is not None else {}
    written |= _task(demand.task)
    written |= _differing(demand, _DEMAND_DEFAULTS, GANG_KEYS)
    if (size := (demand.tasks_min, demand.tasks, demand.step)) != (0, 1, 1):
        written["tasks"] = kinds["tasks"].write(size)
    if demand.prefer:
        written["prefer"] = kinds["prefer"].write((demand.prefer, demand.prefer_wait_ms))
    if demand.spread:
        written["spread"] = kinds["spread"].write((demand.spread, demand.spread_max))
    return written


def _task(task: TaskDemand) -> dict[str, Any]:
    written: dict[str, Any] = {}
    about: dict[str, Any] = {}
    if task.models:
        about["model"] = task.models[0] if len(task.models) == 1 else list(task.models)
    if task.vram_mib_min or task.vram_mib_max is not None:
        about["vram"] = GPU_KEYS.by_name["vram"].kind.write((task.vram_mib_min, task.vram_mib_max))
    if task.slice_mib:
        written["vram"] = GANG_KEYS.by_name["vram"].kind.write(task.slice_mib)
        written |= {"gpu": about} if about else {}
    elif about:
        written["gpu"] = {"count": task.gpus} | about
    elif task.gpus:
        written["gpus"] = task.gpus
    amounts = dict(task.amounts)
    for name, key in _AMOUNTS.items():
        if name in amounts:
            written[key] = GANG_KEYS.by_name[key].kind.write(amounts.pop(name))
    return written | ({"resources": amounts} if amounts else {})
