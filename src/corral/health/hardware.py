"""The hardware of this machine: driver, NUMA, network cards, disks, and how its GPUs are connected.

Reads devices and `/sys`. `root` is the directory of `/sys`, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from corral.health.devices import Devices, DriverTimeout
from corral.health.host import nics, number_in
from corral.wire.details import DiskDetails, GpuDetails, NicDetails, NodeDetails


def read_hardware(devices: Devices, disks: Sequence[Path], root: Path = Path("/")) -> NodeDetails:
    system = os.uname()
    gpus = _described(devices)
    return NodeDetails(
        system=f"{system.sysname} {system.release} {system.machine}",
        driver=devices.driver(),
        numa_nodes=_numa_nodes(root),
        nics=tuple(NicDetails(each.name, each.speed_mbps, _numa_of_card(each.name, root)) for each in nics(root)),
        disks=tuple(DiskDetails(str(path), _size_mib(path)) for path in disks),
        gpus=tuple(_with_numa(gpu, root) for gpu in gpus),
    )


def _described(devices: Devices) -> Sequence[GpuDetails]:
    try:
        return devices.describe()
    except DriverTimeout:
        return ()


def _numa_nodes(root: Path) -> int | None:
    try:
        names = os.listdir(root / "sys/devices/system/node")
    except OSError:
        return None
    return sum(name.startswith("node") and name[4:].isdecimal() for name in names) or None


def _numa_of_card(name: str, root: Path) -> int | None:
    return _numa(root / "sys/class/net" / name / "device/numa_node")


def _with_numa(gpu: GpuDetails, root: Path) -> GpuDetails:
    """NVML writes the address as ``00000000:3B:00.0``, /sys as ``0000:3b:00.0``."""
    if not gpu.bus or gpu.numa is not None:
        return gpu
    return replace(gpu, numa=_numa(root / "sys/bus/pci/devices" / gpu.bus.lower()[-12:] / "numa_node"))


def _numa(path: Path) -> int | None:
    """-1 means that the machine has only one NUMA node, or does not say."""
    found = number_in(path)
    return found if found is not None and found >= 0 else None


def _size_mib(path: Path) -> int | None:
    try:
        about = os.statvfs(path)
    except OSError:
        return None
    return about.f_blocks * about.f_frsize // 2**20
