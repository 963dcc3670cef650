"""NVIDIA GPUs, read through NVML. Any call may fail without affecting the others: then its value is None.

Xids come as events of NVML; if those are not available, from the kernel log, if it can be read. A driver that hangs
blocks the calling thread; the monitor handles that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from corral.health.devices import DriverTimeout
from corral.health.readings import GpuReading, LinkReading, XidEvent
from corral.wire.details import GpuDetails

_KMSG = "/dev/kmsg"
_KMSG_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<xid>\d+)(?P<text>[^\n]*)")
_MIB = 2**20
_TURN_S = 0.5  # between two reads of the kernel log
#: Bits of the clock's event reasons (nvml.h), by the words of `readings.THROTTLES`; the others do not concern health.
_THROTTLE_BITS = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
_LINK_COUNTERS = ("DL_REPLAY", "DL_RECOVERY", "DL_CRC_FLIT", "DL_CRC_DATA")


class NvmlDevices:
    """The GPUs with these UUIDs."""

    def __init__(self, uuids: Sequence[str], nvml: Any = None) -> None:
        self._nvml = nvml if nvml is not None else _binding()
        self._uuids = tuple(uuids)
        self._by_bus: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        self._events: Any = None
        self._log = -1
        self._gone: set[str] = set()
        self._is_open = False

    def _open(self) -> None:
        if self._is_open:
            return
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise DriverTimeout(f"NVML does not answer: {error}") from None
        self._is_open = True
        for uuid in self._uuids:
            try:
                handle = self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            except self._nvml.NVMLError as error:
                if self._says_gone(error):
                    self._gone.add(uuid)
                continue
            self._by_bus[_short_bus(_text(self._field(handle, "nvmlDeviceGetPciInfo", "busId")))] = uuid
        self._events = self._subscribed()
        if self._events is None:
            self._log = _open_log()

    def _says_gone(self, error: Any) -> bool:
        """Only an error that says so: a call that fails for another reason says nothing about the GPU."""
        gone = (self._constant("NVML_ERROR_NOT_FOUND", 6), self._constant("NVML_ERROR_GPU_IS_LOST", 15))
        return getattr(error, "value", None) in gone

    # --- reading ------------------------------------------------------------------------------------------------------

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None: the driver or the binding does not support it."""
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, AttributeError, TypeError, ValueError):
            return None

    def _field(self, handle: Any, name: str, field: str) -> Any:
        return getattr(self._ask(name, handle), field, None)

    def _constant(self, name: str, otherwise: int) -> int:
        return int(getattr(self._nvml, name, otherwise))

    def driver(self) -> str | None:
        version = self._ask("nvmlSystemGetDriverVersion")
        return None if version is None else _text(version)

    def describe(self) -> Sequence[GpuDetails]:
        self._open()
        return [self._described(slot, self._handles.get(uuid)) for slot, uuid in enumerate(self._uuids)]

    def _described(self, slot: int, handle: Any) -> GpuDetails:
        if handle is None:
            return GpuDetails(slot=slot)
        slots = {bus: self._uuids.index(uuid) for bus, uuid in self._by_bus.items()}
        states = [self._ask("nvmlDeviceGetNvLinkState", handle, n) for n in range(self._links_max)]
        up = [n for n, state in enumerate(states) if state == self._constant("NVML_FEATURE_ENABLED", 1)]
        remotes = [self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link) for link in up]
        buses = [_short_bus(_text(getattr(remote, "busId", None))) for remote in remotes]
        return GpuDetails(
            slot=slot,
            bus=_text(self._field(handle, "nvmlDeviceGetPciInfo", "busId")),
            numa=self._ask("nvmlDeviceGetNumaNodeId", handle),
            pcie_generation=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            nvlinks=len(up) if any(state is not None for state in states) else None,
            peers=tuple(sorted({slots[bus] for bus in buses if bus in slots})),
            switches=sum(bus not in slots for bus in buses),
        )

    @property
    def _links_max(self) -> int:
        return self._constant("NVML_NVLINK_MAX_LINKS", 18)

    def read(self) -> Sequence[GpuReading]:
        self._open()
        return [self._read(uuid) for uuid in self._uuids]

    def _read(self, uuid: str) -> GpuReading:
        handle = self._handles.get(uuid)
        if handle is None or self._is_lost(handle):
            return GpuReading(uuid=uuid, is_there=handle is None and uuid not in self._gone)
        ask, memory = self._ask, self._ask("nvmlDeviceGetMemoryInfo", handle)
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        corrected, uncorrected = 0, 1  # NVML_MEMORY_ERROR_TYPE_*
        volatile, ever = 0, 1  # NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC
        rows = ask("nvmlDeviceGetRemappedRows", handle)
        retiring = ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        return GpuReading(
            uuid=uuid,
            temperature_c=ask("nvmlDeviceGetTemperature", handle, self._constant("NVML_TEMPERATURE_GPU", 0)),
            temperature_c_max=self._threshold(handle, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN", 1),
            memory_temperature_c=self._field_value(handle, "NVML_FI_DEV_MEMORY_TEMP", 82),
            memory_temperature_c_max=self._threshold(handle, "NVML_TEMPERATURE_THRESHOLD_MEM_MAX", 2),
            throttle=self._throttle(handle),
            corrected=ask("nvmlDeviceGetTotalEccErrors", handle, corrected, volatile),
            uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, volatile),
            corrected_ever=ask("nvmlDeviceGetTotalEccErrors", handle, corrected, ever),
            uncorrected_ever=ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, ever),
            remapped_rows=None if rows is None else rows[0] + rows[1],
            is_remap_pending=bool(rows[2]) if rows is not None else None if retiring is None else bool(retiring),
            has_remap_failed=None if rows is None else bool(rows[3]),
            links=tuple(self._links(handle)),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_replays=ask("nvmlDeviceGetPcieReplayCounter", handle),
            utilisation_percent=getattr(use, "gpu", None),
            memory_used_mib=None if memory is None else int(memory.used) // _MIB,
            memory_mib=None if memory is None else int(memory.total) // _MIB,
            power_mw=ask("nvmlDeviceGetPowerUsage", handle),
            power_mw_max=ask("nvmlDeviceGetEnforcedPowerLimit", handle),
            processes=self._processes(handle),
        )

    def _is_lost(self, handle: Any) -> bool:
        try:
            self._nvml.nvmlDeviceGetTemperature(handle, 0)
        except self._nvml.NVMLError as error:
            return self._says_gone(error)
        except (AttributeError, TypeError, ValueError):
            pass
        return False

    def _threshold(self, handle: Any, name: str, otherwise: int) -> int | None:
        value = self._ask("nvmlDeviceGetTemperatureThreshold", handle, self._constant(name, otherwise))
        return int(value) if value else None

    def _field_value(self, handle: Any, name: str, otherwise: int) -> int | None:
        value = self._ask("nvmlDeviceGetFieldValues", handle, [self._constant(name, otherwise)])
        if not value or getattr(value[0], "nvmlReturn", 1) != 0:
            return None
        return int(value[0].value.uiVal) or None

    def _throttle(self, handle: Any) -> tuple[str, ...] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)  # the name in old bindings
        return None if bits is None else tuple(word for bit, word in _THROTTLE_BITS.items() if bits & bit)

    def _links(self, handle: Any) -> Iterator[LinkReading]:
        for link in range(self._links_max):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                return
            counters = [self._link_errors(handle, link, name, n) for n, name in enumerate(_LINK_COUNTERS)]
            known = [count for count in counters if count is not None]
            yield LinkReading(link, state == self._constant("NVML_FEATURE_ENABLED", 1), sum(known) if known else None)

    def _link_errors(self, handle: Any, link: int, name: str, otherwise: int) -> int | None:
        counter = self._constant(f"NVML_NVLINK_ERROR_{name}", otherwise)
        count = self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
        return None if count is None else int(count)

    def _processes(self, handle: Any) -> tuple[int, ...] | None:
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return None if found is None else tuple(int(process.pid) for process in found)

    # --- events -------------------------------------------------------------------------------------------------------

    def _subscribed(self) -> Any:
        """None: NVML does not report the Xids of at least one GPU."""
        events = self._ask("nvmlEventSetCreate")
        if events is None:
            return None
        try:
            for handle in self._handles.values():
                self._nvml.nvmlDeviceRegisterEvents(handle, self._constant("nvmlEventTypeXidCriticalError", 8), events)
        except (self._nvml.NVMLError, AttributeError):
            self._ask("nvmlEventSetFree", events)
            return None
        return events

    def listen(self, patience_s: float) -> Sequence[XidEvent]:
        with contextlib.suppress(DriverTimeout):
            self._open()
        if self._events is None:
            time.sleep(min(patience_s, _TURN_S) if self._log >= 0 else patience_s)
            return list(self._logged())
        began = time.monotonic()
        wait: Callable[..., Any] = getattr(self._nvml, "nvmlEventSetWait_v2", None) or self._nvml.nvmlEventSetWait
        try:
            event = wait(self._events, int(patience_s * 1000))
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) != self._constant("NVML_ERROR_TIMEOUT", 10):
                time.sleep(max(patience_s - (time.monotonic() - began), 0))
            return ()
        return [XidEvent(self._uuid_of(event.device), int(event.eventData), _now_ms())]

    def _uuid_of(self, device: Any) -> str:
        """By its handle first: a GPU that has just fallen off the bus no longer reports its UUID."""
        address = _address(device)
        for uuid, handle in self._handles.items():
            if address is not None and _address(handle) == address:
                return uuid
        return _text(self._ask("nvmlDeviceGetUUID", device))

    def _logged(self) -> Iterator[XidEvent]:
        while self._log >= 0:
            try:
                line = os.read(self._log, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                return
            except OSError:  # some of it was overwritten before it was read
                continue
            yield from xids_in(line, self._by_bus)

    def close(self) -> None:
        if self._events is not None:
            self._ask("nvmlEventSetFree", self._events)
            self._events = None
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        if self._is_open:
            self._ask("nvmlShutdown")
            self._is_open = False


def _address(handle: Any) -> int | None:
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return None


def _binding() -> Any:
    import pynvml  # type: ignore[import-untyped]

    return pynvml


def xids_in(line: str, by_bus: dict[str, str]) -> Iterator[XidEvent]:
    """The Xids in a line of the kernel log: ``NVRM: Xid (PCI:0000:3b:00): 79, ...``."""
    for match in _KMSG_XID.finditer(line):
        uuid = by_bus.get(_short_bus(match["bus"]), "")
        yield XidEvent(uuid, int(match["xid"]), _now_ms(), match["text"].strip(" ,")[:200])


def _short_bus(bus: str) -> str:
    """``00000000:3B:00.0`` and ``0000:3b:00`` are the same: domain without leading zeros, bus and device."""
    parts = bus.lower().partition(".")[0].split(":")
    return ":".join([parts[0].lstrip("0") or "0", *parts[1:]]) if len(parts) == 3 else bus.lower()


def _open_log() -> int:
    """The kernel log from now on. -1: it cannot be read."""
    try:
        log = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        os.lseek(log, 0, os.SEEK_END)
    except OSError:
        os.close(log)
        return -1
    return log


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
