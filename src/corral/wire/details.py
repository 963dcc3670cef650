"""The hardware of a node in more detail than placement needs: for display and for diagnosis.

Values only. None: unknown.
"""

from __future__ import annotations

from msgspec import Struct


class NicDetails(Struct, frozen=True, gc=False):
    """A network card; ``numa``: its NUMA node."""

    name: str
    speed_mbps: int | None = None
    numa: int | None = None


class DiskDetails(Struct, frozen=True, gc=False):
    path: str
    size_mib: int | None = None


class GpuDetails(Struct, frozen=True, gc=False, kw_only=True):
    """How a GPU is connected. ``peers``: slots it reaches by NVLink without a switch; ``switches``: number of
    NVLinks to switches. PCIe: what GPU and slot both support."""

    slot: int
    bus: str = ""
    numa: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    peers: tuple[int, ...] = ()
    switches: int = 0


class NodeDetails(Struct, frozen=True, gc=False, kw_only=True):
    """The hardware of a node."""

    system: str = ""
    driver: str | None = None  # of its GPUs
    numa_nodes: int | None = None
    nics: tuple[NicDetails, ...] = ()
    disks: tuple[DiskDetails, ...] = ()
    gpus: tuple[GpuDetails, ...] = ()
