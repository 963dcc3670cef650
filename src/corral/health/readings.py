"""What was read from a machine at one time. None means unknown, which is neither good nor bad.

Values only: the readers know how to read them, the rules what they mean. Counters only increase, until the device or
the driver is reset.
"""

from __future__ import annotations

from msgspec import Struct


class LinkReading(Struct, frozen=True, gc=False):
    """One NVLink of a GPU."""

    number: int
    is_up: bool | None = None
    errors: int | None = None  # of all kinds that the device counts


class GpuReading(Struct, frozen=True, gc=False, kw_only=True):
    """One GPU. ``is_there``: it responds at all; False: the driver says that it is gone.

    ``throttle``: why it is slower than it could be, as keys of `THROTTLES`. Memory errors are counted since the driver
    was loaded (volatile), and over the lifetime of the GPU (aggregate).
    """

    uuid: str
    is_there: bool = True
    temperature_c: int | None = None
    temperature_c_max: int | None = None  # from here on it slows down, as it reports itself
    memory_temperature_c: int | None = None
    memory_temperature_c_max: int | None = None
    throttle: tuple[str, ...] | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    corrected_ever: int | None = None
    uncorrected_ever: int | None = None
    remapped_rows: int | None = None
    is_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    links: tuple[LinkReading, ...] | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_replays: int | None = None
    utilisation_percent: int | None = None
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    power_mw: int | None = None
    power_mw_max: int | None = None
    processes: tuple[int, ...] | None = None


#: Reasons for being slow that concern health, with their descriptions. Being at the power limit is not one.
THROTTLES = {
    "hw_thermal": "the hardware slows it down because it is hot",
    "sw_thermal": "the driver slows it down because it is hot",
    "hw_power_brake": "the power supply asks it to slow down",
    "hw_slowdown": "the hardware slows it down",
}


class XidEvent(Struct, frozen=True, gc=False):
    """The driver reported an error of a GPU. ``uuid`` empty: it did not say of which."""

    uuid: str
    xid: int
    at_ms: int
    text: str = ""


class NicReading(Struct, frozen=True, gc=False):
    """A physical network card."""

    name: str
    is_up: bool | None = None
    speed_mbps: int | None = None
    errors: int | None = None


class DiskReading(Struct, frozen=True, gc=False):
    """A file system that Corral writes to. ``fault``: the error of a small write; None: it was not tried."""

    path: str
    free_mib: int | None = None
    size_mib: int | None = None
    is_read_only: bool | None = None
    write_ms: int | None = None
    fault: str | None = None


class ClockReading(Struct, frozen=True, gc=False):
    """``jump_ms``: by how much the wall clock was set since the last reading, compared with the monotonic clock."""

    is_synchronised: bool | None = None
    error_ms: int | None = None
    jump_ms: int | None = None


class HostReading(Struct, frozen=True, gc=False, kw_only=True):
    """The machine around the GPUs."""

    nics: tuple[NicReading, ...] = ()
    disks: tuple[DiskReading, ...] = ()
    memory_mib: int | None = None
    memory_available_mib: int | None = None
    load_percent: int | None = None  # of its CPUs, over a minute
    clock: ClockReading = ClockReading()


class SiteReading(Struct, frozen=True, gc=False):
    """The result of the operator's own check. ``code`` None: it did not end in time, or could not be run."""

    code: int | None
    text: str


class ProbeReading(Struct, frozen=True, gc=False):
    """The result of a probe of a GPU. ``passed`` None: it could not be probed, which says nothing about it."""

    passed: bool | None
    text: str = ""
    gflops: int | None = None
    mib_per_s: int | None = None
