"""What nodes report for display and diagnosis: their hardware in more detail than placement needs, and what GPUs and
ranks do at a time. No decision depends on it.

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


class GpuActivity(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One GPU of a node. ``idle_ms``: for how long every reading has shown no work. ``is_simulated``: the GPU does not
    exist, and its figures are made up from the CPU time and memory of its tasks."""

    slot: int
    utilisation_percent: int | None = None
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    idle_ms: int | None = None
    is_simulated: bool = False


class RankActivity(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One rank of a task. ``step``: the last one, as the program counts; ``step_ms``: the recent mean time of a step;
    ``since_step_ms``: how long ago it last reported one; ``metrics``: numbers that the program reports, such as its
    loss; None: nan or infinite; ``parameters``: a step, and the fingerprint of the parameters after it. All only if the
    program reports them. ``cpu_milli``: thousandths of a CPU."""

    rank: int
    cpu_milli: int | None = None
    step: int | None = None
    step_ms: int | None = None
    since_step_ms: int | None = None
    metrics: dict[str, float | None] = {}
    parameters: tuple[int, str] | None = None
