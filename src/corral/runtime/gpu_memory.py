"""Which process uses how much memory of a GPU, by NVML. Knows devices and processes, not tasks.

GPUs that are simulated or do not answer are left out: nothing is known of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

_MIB = 1 << 20


class GpuMemory(Struct, frozen=True, gc=False):
    """One GPU at one time: its free memory, and what each process uses."""

    uuid: str
    free_mib: int
    used_mib: dict[int, int]  # by process


class MemoryReader(Protocol):
    def read(self, uuids: Sequence[str]) -> Sequence[GpuMemory]:
        """The memory of those GPUs that answer."""

    def close(self) -> None: ...


class NvmlMemory:
    """Asks the driver. NVML is initialized with the first call, and again after a failure."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._is_open = False

    def read(self, uuids: Sequence[str]) -> list[GpuMemory]:
        wanted = [uuid for uuid in uuids if uuid.startswith("GPU-")]
        if not wanted or not self._open():
            return []
        found = []
        for uuid in wanted:
            with contextlib.suppress(self._nvml.NVMLError, AttributeError, TypeError, ValueError):
                found.append(self._memory(uuid))
        return found

    def _open(self) -> bool:
        if self._is_open:
            return True
        try:
            if self._nvml is None:
                import pynvml  # type: ignore[import-untyped]

                self._nvml = pynvml
            self._nvml.nvmlInit()
            self._is_open = True
        except Exception:  # no binding, no driver, or one that does not answer
            return False
        return True

    def _memory(self, uuid: str) -> GpuMemory:
        handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        free_mib = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).free) // _MIB
        used: dict[int, int] = {}
        for ask in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            with contextlib.suppress(self._nvml.NVMLError, AttributeError):
                for process in getattr(self._nvml, ask)(handle):
                    has = int(process.usedGpuMemory or 0) // _MIB  # None: the driver does not say
                    used[int(process.pid)] = max(used.get(int(process.pid), 0), has)
        return GpuMemory(uuid, free_mib, used)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
