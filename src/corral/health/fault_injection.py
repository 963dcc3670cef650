"""Drills: inject the symptoms of a fault into the readings of a GPU, real or simulated, to see what would happen.

The drills are in one small file below the data directory; `corral node drill` writes it, the monitor of the machine
reads it. The same directory has a file with the faults that operators have cleared after a repair.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from corral.health.devices import Devices
from corral.health.readings import GpuReading, LinkReading, XidEvent
from corral.io.files import write_file
from corral.wire.details import GpuDetails

DRILL_FILE, CLEAR_FILE = "drill.json", "clear.json"
_TURN_S = 0.1


class InjectedXid(Struct, frozen=True, gc=False):
    xid: int
    at_ms: int


class InjectedFault(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the readings of one GPU say instead of the real values. ``probe_fails``: also a probe fails."""

    xids: tuple[InjectedXid, ...] = ()
    temperature_c: int | None = None
    throttle: str | None = None
    corrected: int = 0  # added to what the device counts
    uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    links_down: tuple[int, ...] = ()
    pcie_width: int | None = None
    vanished: bool = False
    probe_fails: bool = False


Drills = dict[int, InjectedFault]  # by slot


class FaultCleared(Struct, frozen=True, gc=False):
    """An operator has cleared the faults of a GPU (by slot), or of the machine itself (None), after a repair."""

    gpu: int | None
    at_ms: int


def health_folder(data: Path) -> Path:
    return data / "health"


def read_drills(folder: Path) -> Drills:
    return _read(folder / DRILL_FILE, Drills) or {}


def write_drills(folder: Path, drills: Drills) -> None:
    _write(folder / DRILL_FILE, drills)


def read_clearings(folder: Path) -> list[FaultCleared]:
    return _read(folder / CLEAR_FILE, list[FaultCleared]) or []


def write_clearings(folder: Path, clearings: Sequence[FaultCleared]) -> None:
    _write(folder / CLEAR_FILE, clearings)


def _read(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, msgspec.json.encode(value), mode=0o666, durable=False)


class DevicesWithFaults:
    """Devices with the drills of a directory applied to their readings."""

    def __init__(self, devices: Devices, uuids: Sequence[str], folder: Path) -> None:
        self._devices, self._folder = devices, folder
        self._since_ms = _now_ms()
        self._raised: set[tuple[int, InjectedXid]] = set()
        self._stamp: tuple[int, int] | None = None
        self._drills: Drills = {}
        self._uuids = tuple(uuids)

    @property
    def drills(self) -> Drills:
        try:
            about = os.stat(self._folder / DRILL_FILE)
        except OSError:
            self._stamp = None
            self._drills = {}
            return self._drills
        stamp = (about.st_mtime_ns, about.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp
            self._drills = read_drills(self._folder)
        return self._drills

    def read(self) -> Sequence[GpuReading]:
        drills = self.drills
        readings = self._devices.read()
        return [drilled(reading, drills[n]) if n in drills else reading for n, reading in enumerate(readings)]

    def listen(self, patience_s: float) -> Sequence[XidEvent]:
        end = time.monotonic() + patience_s
        while True:
            events = [*self._devices.listen(max(min(_TURN_S, end - time.monotonic()), 0)), *self._injected_xids()]
            if events or time.monotonic() >= end:
                return events

    def _injected_xids(self) -> list[XidEvent]:
        events = []
        for slot, drill in self.drills.items():
            for xid in drill.xids:
                is_new = xid.at_ms >= self._since_ms and (slot, xid) not in self._raised
                if is_new and slot < len(self._uuids):
                    self._raised.add((slot, xid))
                    events.append(XidEvent(self._uuids[slot], xid.xid, xid.at_ms, "drill"))
        return events

    def driver(self) -> str | None:
        return self._devices.driver()

    def describe(self) -> Sequence[GpuDetails]:
        return self._devices.describe()

    def close(self) -> None:
        self._devices.close()


def drilled(reading: GpuReading, drill: InjectedFault) -> GpuReading:
    if drill.vanished:
        return GpuReading(uuid=reading.uuid, is_there=False)
    links = reading.links
    if drill.links_down and links is not None:
        links = tuple(
            LinkReading(link.number, link.is_up and link.number not in drill.links_down, link.errors) for link in links
        )
    return replace(
        reading,
        temperature_c=reading.temperature_c if drill.temperature_c is None else drill.temperature_c,
        throttle=reading.throttle if drill.throttle is None else (drill.throttle,),
        corrected=_more(reading.corrected, drill.corrected),
        uncorrected=_more(reading.uncorrected, drill.uncorrected),
        is_remap_pending=drill.remap_pending or reading.is_remap_pending,
        has_remap_failed=drill.remap_failed or reading.has_remap_failed,
        links=links,
        pcie_width=reading.pcie_width if drill.pcie_width is None else drill.pcie_width,
    )


def _more(count: int | None, more: int) -> int | None:
    return count if not more else (count or 0) + more


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
