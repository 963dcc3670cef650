"""What the tasks of a gang do: the reports of its nodes, matched with its seats. Pure apart from reading the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, amount_of
from corral.core.model import Gang
from corral.runtime.base import TaskActivity, TaskKey
from corral.server.activity.store import Activities
from corral.wire.api.activity import ActivityTotals, GpuActivityView, RankActivityView, TaskActivityView
from corral.wire.details import GpuActivity


def task_views(gang: Gang, activities: Activities, now_ms: int) -> Iterable[TaskActivityView]:
    """One for each task of the present attempt, also those that nothing is known of."""
    for task, seat in enumerate(gang.seats):
        reading = activities.of(seat.node, now_ms)
        key = TaskKey(gang.id, gang.attempt, task)
        stated = None if reading is None else reading.tasks.get(key)
        slots = [slot for slot in range(seat.gpus.bit_length()) if seat.gpus >> slot & 1]
        known = {} if reading is None or stated is None else reading.gpus
        gpus = [known.get(slot, GpuActivity(slot=slot)) for slot in slots]
        runs_ms = max(now_ms - gang.started_ms, 0) if gang.started_ms else 0
        yield _task_view(gang, task, stated, gpus, runs_ms, None if reading is None else now_ms - reading.at_ms)


def _task_view(
    gang: Gang, task: int, stated: TaskActivity | None, gpus: Sequence[GpuActivity], runs_ms: int, age_ms: int | None
) -> TaskActivityView:
    return TaskActivityView(
        gang=gang.id,
        attempt=gang.attempt,
        task=task,
        node=gang.seats[task].node,
        age_ms=age_ms if stated is not None else None,
        cpu_milli=None if stated is None else stated.cpu_milli,
        cpu_given_milli=amount_of(gang.amounts, CPU_MILLI),
        memory_mib=None if stated is None else stated.memory_mib,
        memory_given_mib=amount_of(gang.amounts, MEMORY_MIB),
        gpus=tuple(gpu_view(gpu, runs_ms) for gpu in gpus),
        ranks=() if stated is None else tuple(map(_rank_view, stated.ranks)),
    )


def gpu_view(gpu: GpuActivity, idle_ms_max: int | None = None) -> GpuActivityView:
    """``idle_ms_max``: how long the job has run: what was idle before is not its fault."""
    idle_ms = gpu.idle_ms
    if idle_ms is not None and idle_ms_max is not None:
        idle_ms = min(idle_ms, idle_ms_max)
    return GpuActivityView(
        slot=gpu.slot,
        utilisation_percent=gpu.utilisation_percent,
        memory_used_mib=gpu.memory_used_mib,
        memory_mib=gpu.memory_mib,
        power_mw=gpu.power_mw,
        temperature_c=gpu.temperature_c,
        idle_ms=idle_ms,
        simulated=gpu.is_simulated,
    )


def _rank_view(rank: object) -> RankActivityView:
    names = RankActivityView.__struct_fields__
    return RankActivityView(**{name: getattr(rank, name) for name in names})


def totals(tasks: Iterable[TaskActivityView]) -> ActivityTotals:
    """All tasks together. What no task has reported is None, not 0."""
    tasks = list(tasks)
    return replace(
        gpu_totals(gpu for task in tasks for gpu in task.gpus),
        cpu_milli=_sum(task.cpu_milli for task in tasks),
        cpu_given_milli=_sum(task.cpu_given_milli for task in tasks),
        memory_mib=_sum(task.memory_mib for task in tasks),
        memory_given_mib=_sum(task.memory_given_mib for task in tasks),
    )


def gpu_totals(gpus: Iterable[GpuActivityView]) -> ActivityTotals:
    gpus = list(gpus)
    measured = [gpu.utilisation_percent for gpu in gpus if gpu.utilisation_percent is not None]
    return ActivityTotals(
        gpus=len(gpus),
        gpus_measured=len(measured),
        gpus_simulated=sum(gpu.simulated for gpu in gpus),
        utilisation_percent=round(sum(measured) / len(measured)) if measured else None,
        gpu_memory_used_mib=_sum(gpu.memory_used_mib for gpu in gpus),
        gpu_memory_mib=_sum(gpu.memory_mib for gpu in gpus),
        power_mw=_sum(gpu.power_mw for gpu in gpus),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
