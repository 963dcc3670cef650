"""What a machine is made of, in more detail than placing work needs: for people, and for whoever looks for a fault.

Values only. None means that nobody knows.
"""

from __future__ import annotations

from msgspec import Struct


class NicDetails(Struct, frozen=True, gc=False):
    """A network card; ``numa``: the part of the machine it is close to."""

    name: str
    speed_mbps: int | None = None
    numa: int | None = None


class DiskDetails(Struct, frozen=True, gc=False):
    path: str
    size_mib: int | None = None


class GpuDetails(Struct, frozen=True, gc=False, kw_only=True):
    """How a GPU is connected. ``peers``: slots it reaches by NVLink without a switch; ``switches``: how many NVLinks
    lead to switches. PCIe: what GPU and slot can do together."""

    slot: int
    bus: str = ""
    numa: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    peers: tuple[int, ...] = ()
    switches: int = 0


class NodeDetails(Struct, frozen=True, gc=False, kw_only=True):
    """A machine."""

    system: str = ""
    driver: str | None = None  # of its GPUs
    numa_nodes: int | None = None
    nics: tuple[NicDetails, ...] = ()
    disks: tuple[DiskDetails, ...] = ()
    gpus: tuple[GpuDetails, ...] = ()
