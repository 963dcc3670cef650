"""The one seam to the GPUs of a machine: what they tell when asked, and what they shout when something breaks.

Implemented by NVML, by devices that are only pretended, and by drills laid over either. A device that cannot say
something says None; a device that cannot be asked at all is told as not there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from corral.backends.gpus import is_simulated
from corral.backends.health.readings import GpuReading, LinkReading, XidEvent
from corral.core.cluster.resources import Gpu
from corral.wire.details import GpuDetails

_LINKS = 18  # of a pretended GPU


class Silent(Exception):
    """The driver cannot be asked at all, which says nothing about the GPUs."""


class Devices(Protocol):
    """The GPUs of one machine. Used by one thread."""

    def read(self) -> Sequence[GpuReading]:
        """One reading for each GPU, in the order of the node's slots. Raises `Silent`."""
        ...

    def listen(self, patience_s: float) -> Sequence[XidEvent]:
        """Wait so long, or until something is shouted."""
        ...

    def driver(self) -> str | None:
        """Its version."""
        ...

    def describe(self) -> Sequence[GpuDetails]:
        """How each is connected, in the order of the slots. Raises `Silent`."""
        ...

    def close(self) -> None: ...


def devices_of(gpus: Sequence[Gpu]) -> Devices:
    """As they are: NVIDIA's by NVML, pretended ones by pretending; of others nothing is known."""
    uuids = [gpu.uuid for gpu in gpus]
    if any(map(is_simulated, uuids)):
        return PretendedDevices(uuids)
    if any(uuid.startswith("GPU-") for uuid in uuids):
        from corral.backends.health.nvml import NvmlDevices

        return NvmlDevices(uuids)
    return UnknownDevices(uuids)


class PretendedDevices:
    """Simulated GPUs, cool and idle. Drills make them sick."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids = tuple(uuids)

    def read(self) -> Sequence[GpuReading]:
        return [_pretended(uuid) for uuid in self._uuids]

    def listen(self, patience_s: float) -> Sequence[XidEvent]:
        time.sleep(patience_s)
        return ()

    def driver(self) -> str | None:
        return "simulated"

    def describe(self) -> Sequence[GpuDetails]:
        """As on a machine with switches, half of it on each of two sockets."""
        middle = (len(self._uuids) + 1) // 2
        return [
            GpuDetails(slot=n, numa=n // middle, pcie_generation=5, pcie_width=16, nvlinks=_LINKS, switches=_LINKS)
            for n in range(len(self._uuids))
        ]

    def close(self) -> None:
        pass


def _pretended(uuid: str) -> GpuReading:
    return GpuReading(
        uuid=uuid, temperature_c=45, temperature_c_max=90, memory_temperature_c=48, memory_temperature_c_max=105,
        throttle=(), corrected=0, uncorrected=0, corrected_ever=0, uncorrected_ever=0, remapped_rows=0,
        is_remap_pending=False, has_remap_failed=False,
        links=tuple(LinkReading(n, True, 0) for n in range(_LINKS)),
        pcie_width=16, pcie_width_max=16, pcie_generation=5, pcie_generation_max=5, pcie_replays=0,
        utilisation_percent=0, memory_used_mib=0, power_mw=70_000, power_mw_max=700_000, processes=(),
    )  # fmt: skip


class UnknownDevices(PretendedDevices):
    """GPUs that nobody here can ask: everything about them is unknown."""

    def read(self) -> Sequence[GpuReading]:
        return [GpuReading(uuid=uuid) for uuid in self._uuids]

    def driver(self) -> str | None:
        return None

    def describe(self) -> Sequence[GpuDetails]:
        return [GpuDetails(slot=n) for n in range(len(self._uuids))]
