"""Drills: a GPU is made to look sick, to see what would happen. Laid over real devices as well as pretended ones.

What is drilled stands in one small file below the data directory; `corral node drill` writes it, the monitor of the
machine reads it. The same folder takes what operators say about GPUs that were mended.
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

from corral.backends.health.devices import Devices
from corral.backends.health.readings import GpuReading, LinkReading, XidEvent
from corral.wire.details import GpuDetails

DRILL_FILE, CLEAR_FILE = "drill.json", "clear.json"
_TURN_S = 0.1


class XidDrill(Struct, frozen=True, gc=False):
    xid: int
    at_ms: int


class Drill(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What one GPU shall look like, whatever it says itself. ``probe``: whether trying it gives a good end."""

    xids: tuple[XidDrill, ...] = ()
    temperature_c: int | None = None
    throttle: str | None = None
    corrected: int = 0  # on top of what the device counts
    uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    links_down: tuple[int, ...] = ()
    pcie_width: int | None = None
    vanished: bool = False
    probe_fails: bool = False


Drills = dict[int, Drill]  # by slot


class Clearing(Struct, frozen=True, gc=False):
    """An operator says that a GPU (by slot), or the machine itself (None), is mended."""

    gpu: int | None
    at_ms: int


def health_folder(data: Path) -> Path:
    return data / "health"


def read_drills(folder: Path) -> Drills:
    return _read(folder / DRILL_FILE, Drills) or {}


def write_drills(folder: Path, drills: Drills) -> None:
    write_file(folder / DRILL_FILE, drills)


def read_clearings(folder: Path) -> list[Clearing]:
    return _read(folder / CLEAR_FILE, list[Clearing]) or []


def write_clearings(folder: Path, clearings: Sequence[Clearing]) -> None:
    write_file(folder / CLEAR_FILE, clearings)


def _read(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def write_file(path: Path, value: object) -> None:
    """Replaced in one step: whoever reads it sees the old or the new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_bytes(msgspec.json.encode(value))
    draft.replace(path)


class DrilledDevices:
    """Devices, as they look under the drills of a folder."""

    def __init__(self, devices: Devices, uuids: Sequence[str], folder: Path) -> None:
        self._devices, self._folder = devices, folder
        self._since_ms = _now_ms()
        self._shouted: set[tuple[int, XidDrill]] = set()
        self._stamp: tuple[int, int] | None = None
        self._drills: Drills = {}
        self._uuids = tuple(uuids)

    @property
    def drills(self) -> Drills:
        try:
            about = os.stat(self._folder / DRILL_FILE)
        except OSError:
            self._stamp, self._drills = None, {}
            return self._drills
        stamp = (about.st_mtime_ns, about.st_ino)
        if stamp != self._stamp:
            self._stamp, self._drills = stamp, read_drills(self._folder)
        return self._drills

    def read(self) -> Sequence[GpuReading]:
        drills = self.drills
        readings = self._devices.read()
        return [drilled(reading, drills[n]) if n in drills else reading for n, reading in enumerate(readings)]

    def listen(self, patience_s: float) -> Sequence[XidEvent]:
        end = time.monotonic() + patience_s
        while True:
            heard = [*self._devices.listen(max(min(_TURN_S, end - time.monotonic()), 0)), *self._shouts()]
            if heard or time.monotonic() >= end:
                return heard

    def _shouts(self) -> list[XidEvent]:
        heard = []
        for slot, drill in self.drills.items():
            for shout in drill.xids:
                is_new = shout.at_ms >= self._since_ms and (slot, shout) not in self._shouted
                if is_new and slot < len(self._uuids):
                    self._shouted.add((slot, shout))
                    heard.append(XidEvent(self._uuids[slot], shout.xid, shout.at_ms, "drill"))
        return heard

    def driver(self) -> str | None:
        return self._devices.driver()

    def describe(self) -> Sequence[GpuDetails]:
        return self._devices.describe()

    def close(self) -> None:
        self._devices.close()


def drilled(reading: GpuReading, drill: Drill) -> GpuReading:
    if drill.vanished:
        return GpuReading(uuid=reading.uuid, is_there=False)
    links = reading.links
    if drill.links_down and links is not None:
        links = tuple(LinkReading(link.number, link.is_up and link.number not in drill.links_down, link.errors)
                      for link in links)  # fmt: skip
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
