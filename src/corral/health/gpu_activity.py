"""What the GPUs of a machine do: from the readings of the health monitor, with how long each has been idle.

Figures of simulated GPUs follow the tasks that were given them: a task that computes on CPUs seems to compute on its
GPUs. They are marked as simulated. Used from several threads: the readings are replaced, never changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from corral.core.cluster.resources import Gpu
from corral.health.readings import GpuReading
from corral.runtime.base import ActivityReport, TaskActivity, TaskKey
from corral.runtime.gpu_visibility import is_simulated
from corral.wire.details import GpuActivity

IDLE_PERCENT_MAX = 1  # a GPU that is busy for at most this part of the time does no work
_SIMULATED_IDLE_MW, _SIMULATED_BUSY_MW = 70_000, 700_000


class GpuActivities:
    """``take`` gets every reading of the GPUs of this node."""

    def __init__(self, gpus: Sequence[Gpu], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._gpus = tuple(gpus)
        self._monotonic_s = monotonic_s
        self._readings: Mapping[str, GpuReading] = {}
        self._busy_s = dict.fromkeys((gpu.uuid for gpu in gpus), monotonic_s())  # when each was last seen working

    def take(self, readings: Sequence[GpuReading]) -> None:
        self._readings = {reading.uuid: reading for reading in readings}
        for reading in readings:
            self._note(reading.uuid, reading.utilisation_percent)

    def _note(self, uuid: str, utilisation_percent: int | None) -> None:
        if utilisation_percent is None or utilisation_percent > IDLE_PERCENT_MAX:
            self._busy_s[uuid] = self._monotonic_s()

    def added(self, report: ActivityReport, occupied: Sequence[tuple[TaskKey, tuple[str, ...]]]) -> ActivityReport:
        """The report of the machine, with its GPUs. ``occupied``: the GPUs that each task was given."""
        simulated = _simulated(self._gpus, report, occupied)
        for uuid, activity in simulated.items():
            self._note(uuid, activity.utilisation_percent)
        gpus = [
            replace(simulated[gpu.uuid], idle_ms=self._idle_ms(gpu.uuid))
            if gpu.uuid in simulated
            else self._measured(slot, gpu)
            for slot, gpu in enumerate(self._gpus)
        ]
        return replace(report, gpus=tuple(gpus))

    def _measured(self, slot: int, gpu: Gpu) -> GpuActivity:
        reading = self._readings.get(gpu.uuid)
        if reading is None:
            return GpuActivity(slot=slot)
        return GpuActivity(
            slot=slot,
            utilisation_percent=reading.utilisation_percent,
            memory_used_mib=reading.memory_used_mib,
            memory_mib=reading.memory_mib or gpu.vram_mib,
            power_mw=reading.power_mw,
            temperature_c=reading.temperature_c,
            idle_ms=None if reading.utilisation_percent is None else self._idle_ms(gpu.uuid),
        )

    def _idle_ms(self, uuid: str) -> int:
        return max(round((self._monotonic_s() - self._busy_s[uuid]) * 1000), 0)


def _simulated(
    gpus: Sequence[Gpu], report: ActivityReport, occupied: Sequence[tuple[TaskKey, tuple[str, ...]]]
) -> dict[str, GpuActivity]:
    """Figures for GPUs that do not exist: each CPU that a task uses keeps one of its GPUs busy."""
    tasks = {task.key: task for task in report.tasks}
    percent: dict[str, int] = {}
    memory_mib: dict[str, int] = {}
    for key, uuids in occupied:
        task = tasks.get(key, TaskActivity(key))
        for uuid in uuids:
            percent[uuid] = percent.get(uuid, 0) + (task.cpu_milli or 0) // (10 * len(uuids))
            memory_mib[uuid] = memory_mib.get(uuid, 0) + (task.memory_mib or 0) // len(uuids)
    found = {}
    for slot, gpu in enumerate(gpus):
        if is_simulated(gpu.uuid):
            busy = min(percent.get(gpu.uuid, 0), 100)
            found[gpu.uuid] = GpuActivity(
                slot=slot,
                utilisation_percent=busy,
                memory_used_mib=min(memory_mib.get(gpu.uuid, 0), gpu.vram_mib),
                memory_mib=gpu.vram_mib,
                power_mw=_SIMULATED_IDLE_MW + busy * (_SIMULATED_BUSY_MW - _SIMULATED_IDLE_MW) // 100,
                is_simulated=True,
            )
    return found
