"""The interface to the GPUs of a machine: their readings, and the errors that they raise.

Implemented by NVML, by simulated devices, and by injected faults on top of either. What a device does not report is
None; a device that does not respond at all is reported as not there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from corral.core.cluster.resources import Gpu
from corral.health.readings import GpuReading, LinkReading, XidEvent
from corral.runtime.gpu_visibility import is_simulated
from corral.wire.details import GpuDetails

_LINKS = 18  # of a simulated GPU


class DriverTimeout(Exception):
    """The driver does not respond at all, which says nothing about the GPUs."""


class Devices(Protocol):
    """The GPUs of one machine. Used by one thread."""

    def read(self) -> Sequence[GpuReading]:
        """One reading for each GPU, in the order of the node's slots. Raises `DriverTimeout`."""

    def listen(self, patience_s: float) -> Sequence[XidEvent]:
        """Wait for this time, or until an error is raised."""

    def driver(self) -> str | None:
        """The version of the driver."""

    def describe(self) -> Sequence[GpuDetails]:
        """How each GPU is connected, in the order of the slots. Raises `DriverTimeout`."""

    def close(self) -> None: ...


def devices_of(gpus: Sequence[Gpu]) -> Devices:
    """NVIDIA's by NVML, or simulated ones. Nothing is known of others."""
    uuids = [gpu.uuid for gpu in gpus]
    if any(map(is_simulated, uuids)):
        return SimulatedDevices(uuids)
    if any(uuid.startswith("GPU-") for uuid in uuids):
        from corral.health.nvml import NvmlDevices

        return NvmlDevices(uuids)
    return UnknownDevices(uuids)


class SimulatedDevices:
    """Simulated GPUs, cool and idle. Injected faults change that."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids = tuple(uuids)

    def read(self) -> Sequence[GpuReading]:
        return [_simulated(uuid) for uuid in self._uuids]

    def listen(self, patience_s: float) -> Sequence[XidEvent]:
        time.sleep(patience_s)
        return ()

    def driver(self) -> str | None:
        return "simulated"

    def describe(self) -> Sequence[GpuDetails]:
        """As on a machine with switches, half of the GPUs on each of two sockets."""
        middle = (len(self._uuids) + 1) // 2
        return [
            GpuDetails(slot=n, numa=n // middle, pcie_generation=5, pcie_width=16, nvlinks=_LINKS, switches=_LINKS)
            for n in range(len(self._uuids))
        ]

    def close(self) -> None:
        pass


def _simulated(uuid: str) -> GpuReading:
    return GpuReading(
        uuid=uuid,
        temperature_c=45,
        temperature_c_max=90,
        memory_temperature_c=48,
        memory_temperature_c_max=105,
        throttle=(),
        corrected=0,
        uncorrected=0,
        corrected_ever=0,
        uncorrected_ever=0,
        remapped_rows=0,
        is_remap_pending=False,
        has_remap_failed=False,
        links=tuple(LinkReading(n, True, 0) for n in range(_LINKS)),
        pcie_width=16,
        pcie_width_max=16,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_replays=0,
        utilisation_percent=0,
        memory_used_mib=0,
        power_mw=70_000,
        power_mw_max=700_000,
        processes=(),
    )


class UnknownDevices(SimulatedDevices):
    """GPUs that cannot be read here: everything about them is unknown."""

    def read(self) -> Sequence[GpuReading]:
        return [GpuReading(uuid=uuid) for uuid in self._uuids]

    def driver(self) -> str | None:
        return None

    def describe(self) -> Sequence[GpuDetails]:
        return [GpuDetails(slot=n) for n in range(len(self._uuids))]
