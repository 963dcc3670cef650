"""Validates what an agent says that its node and tasks do. What is not plausible is dropped, the rest is kept.

Pure. The figures are only displayed; still, a node may not speak for tasks of others, nor fill the memory of the
server.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from corral.runtime.base import ActivityReport, TaskActivity, TaskKey
from corral.wire.details import GpuActivity, RankActivity

TASKS_MAX = 1_000
RANKS_MAX = 64  # of one task
METRICS_MAX = 16  # of one rank
CPU_MILLI_MAX = 1 << 24
MEMORY_MIB_MAX = 1 << 32
POWER_MW_MAX = 1 << 24
TEMPERATURE_C_MAX = 500
TIME_MS_MAX = 366 * 86_400_000
STEP_MAX = (1 << 53) - 1
_FINGERPRINT = re.compile(r"[0-9A-Za-z]{1,64}")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,39}")


def checked_activity(report: ActivityReport, gpus: int, is_own: Callable[[TaskKey], bool]) -> ActivityReport:
    """The plausible part. ``gpus``: how many the node has; ``is_own``: whether it was given a task."""
    tasks = {task.key: task for task in report.tasks[:TASKS_MAX] if is_own(task.key) and _is_task(task)}
    slots = {gpu.slot: gpu for gpu in report.gpus[:gpus] if 0 <= gpu.slot < gpus and _is_gpu(gpu)}
    return replace(
        report,
        cpu_milli=_amount(report.cpu_milli, CPU_MILLI_MAX),
        memory_mib=_amount(report.memory_mib, MEMORY_MIB_MAX),
        gpus=tuple(slots.values()),
        tasks=tuple(tasks.values()),
    )


def _amount(value: int | None, most: int) -> int | None:
    return value if _is_amount(value, most) else None


def _is_amount(value: int | None, most: int) -> bool:
    return value is None or 0 <= value <= most


def _is_gpu(gpu: GpuActivity) -> bool:
    return (
        _is_amount(gpu.utilisation_percent, 100)
        and _is_amount(gpu.memory_used_mib, MEMORY_MIB_MAX)
        and _is_amount(gpu.memory_mib, MEMORY_MIB_MAX)
        and _is_amount(gpu.power_mw, POWER_MW_MAX)
        and _is_amount(gpu.temperature_c, TEMPERATURE_C_MAX)
        and _is_amount(gpu.idle_ms, TIME_MS_MAX)
    )


def _is_task(task: TaskActivity) -> bool:
    is_used = _is_amount(task.cpu_milli, CPU_MILLI_MAX) and _is_amount(task.memory_mib, MEMORY_MIB_MAX)
    return is_used and len(task.ranks) <= RANKS_MAX and all(map(_is_rank, task.ranks))


def _is_rank(rank: RankActivity) -> bool:
    return (
        0 <= rank.rank <= STEP_MAX
        and _is_amount(rank.cpu_milli, CPU_MILLI_MAX)
        and _is_amount(rank.step, STEP_MAX)
        and _is_amount(rank.step_ms, TIME_MS_MAX)
        and _is_amount(rank.since_step_ms, TIME_MS_MAX)
        and len(rank.metrics) <= METRICS_MAX
        and all(map(_METRIC.fullmatch, rank.metrics))
        and (rank.parameters is None or _is_fingerprint(*rank.parameters))
    )


def _is_fingerprint(step: int, text: str) -> bool:
    return 0 <= step <= STEP_MAX and _FINGERPRINT.fullmatch(text) is not None
