"""Checks of a submitted job that do not depend on the cluster: is it valid, do its parts agree.

Every error is a typed refusal. Nothing is corrected silently. ``never_fits`` says whether it could ever run here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec


def faults_of(spec: JobSpec) -> Iterator[Refusal]:
    """Errors of the job that do not depend on the cluster."""
    if not spec.gangs:
        yield Refusal("no_gangs", "the job has no gang", "add at least one gang", "gangs")
    if len(spec.gangs) > 1 and len({gang.role for gang in spec.gangs}) != len(spec.gangs):
        yield Refusal("duplicate_role", "two gangs have the same role", "give each gang a role of its own", "gangs")
    if spec.array and (len(set(spec.array)) != len(spec.array) or min(spec.array) < 0):
        yield Refusal("bad_array", "array indices must be different and not negative", field="array")
    if spec.array_parallel is not None and spec.array_parallel < 1:
        yield Refusal("bad_array", "array_parallel must be at least 1", field="array_parallel")
    if spec.singleton and not spec.name:
        yield Refusal("singleton_without_name", "a singleton job needs a name", "set the job's name", "name")
    for field, value in (("time_limit_ms", spec.time_limit_ms), ("estimate_ms", spec.estimate_ms)):
        if value is not None and value <= 0:
            yield Refusal("bad_duration", f"{field} is {value}; it must be positive", field=field)
    is_negative = min(spec.min_runtime_ms, spec.grace_ms, spec.start_timeout_ms, spec.restart_cost_ms) < 0
    for field in ("min_runtime_ms", "grace_ms", "start_timeout_ms", "restart_cost_ms") if is_negative else ():
        if getattr(spec, field) < 0:
            yield Refusal("negative_amount", f"{field} is negative", field=field)
    for failure, rule in spec.retries:
        if (rule.count or 0) < 0 or rule.backoff_ms < 0 or rule.grow_memory_percent < 0:
            yield Refusal("negative_amount", f"the retry rule for {failure} has a negative number", field="retries")
    if spec.deadline_ms is not None and spec.begin_ms is not None and spec.deadline_ms <= spec.begin_ms:
        yield Refusal("deadline_before_begin", "the deadline is not after the begin time", field="deadline_ms")
    for gang in spec.gangs:
        for refusal in demand_faults(gang.demand):
            yield Refusal(
                refusal.code,
                f"gang {gang.role}: {refusal.why}",
                refusal.hint,
                f"gangs.{gang.role}.{refusal.field}",
            )


@lru_cache(maxsize=4096)
def demand_faults(demand: Demand) -> tuple[Refusal, ...]:
    """Errors of a demand that do not depend on the cluster. Cached: the same demands are submitted repeatedly."""
    return tuple(_demand_faults(demand))


def _demand_faults(demand: Demand) -> Iterator[Refusal]:
    if demand.tasks < 1:
        yield Refusal("no_tasks", f"the gang has {demand.tasks} tasks", "request at least one task", "tasks")
    if demand.tasks_min < 0 or demand.tasks_min > demand.tasks or demand.step < 1:
        yield Refusal(
            "bad_range",
            f"the range of tasks {demand.tasks_min}..{demand.tasks} with step {demand.step} is not valid",
            "use min <= max and step >= 1",
            "tasks",
        )
    elif demand.tasks_min and (demand.tasks - demand.tasks_min) % demand.step:
        yield Refusal("bad_range", "the step does not divide the range of tasks", field="step")
    if demand.spares < 0:
        yield Refusal("negative_amount", "spares is negative", field="spares")
    if demand.spread and demand.spread_max < 1:
        yield Refusal("bad_range", "spread_max must be at least 1", field="spread_max")
    yield from _task_faults(demand.task)
    if demand.tp < 1 or (demand.tp > 1 and demand.task.slice_mib):
        yield Refusal("bad_tp", f"tp {demand.tp} is not valid", "use at least 1, and 1 for a slice of a GPU", "tp")
    elif demand.tp > 1 and not _tp_divides(demand):
        of_what = f"{_counted(demand.tasks, 'task')} of {_counted(demand.task.gpus, 'GPU')}"
        yield Refusal(
            "bad_tp",
            f"groups of {demand.tp} ranks do not divide {of_what}",
            "tp must divide the GPUs of a task, or whole tasks must make up a group",
            "tp",
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _task_faults(task: TaskDemand) -> Iterator[Refusal]:
    numbers: Mapping[str, int] = {
        "gpus": task.gpus,
        "slice_mib": task.slice_mib,
        "vram_mib_min": task.vram_mib_min,
        **dict(task.amounts),
    }
    for name, value in numbers.items():
        if value < 0:
            yield Refusal("negative_amount", f"{name} is {value}", "amounts must not be negative", name)
    if task.gpus and task.slice_mib:
        why = "the task requests both whole GPUs and a slice of one"
        yield Refusal("gpus_and_slice", why, "request one or the other", "slice_mib")
    if task.vram_mib_max is not None and task.vram_mib_max < task.vram_mib_min:
        yield Refusal("bad_range", "the largest VRAM is below the smallest", field="vram_mib_max")
    if not task.wants_gpu and not task.amounts:
        yield Refusal("asks_for_nothing", "the task requests no resources", "request GPUs, CPUs or memory", "task")


def _tp_divides(demand: Demand) -> bool:
    gpus = max(1, demand.task.gpus)
    if demand.tp <= gpus:
        return gpus % demand.tp == 0
    chunk = demand.chunk
    sizes = (*demand.sizes(), demand.spares)
    return demand.tp % gpus == 0 and all(size % chunk == 0 for size in sizes) and demand.spread_max % chunk in (0, 1)
