"""Reads the machine around the GPUs: network cards, disks, memory, load, clock.

Reads `/sys`, `/proc` and file systems. It writes only a small file, which it removes again. What cannot be read is
None. `root` is the directory of `/sys` and `/proc`, for tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from corral.health.readings import ClockReading, DiskReading, HostReading, NicReading

_MIB = 2**20
_ERRORS = ("rx_errors", "tx_errors")
_STA_UNSYNC = 0x40
_PROBE_BYTES = 4096


class HostReader:
    """``disks``: directories on the file systems that matter."""

    def __init__(self, disks: Sequence[Path], root: Path = Path("/")) -> None:
        self._disks, self._root = tuple(disks), root
        self._wall_ahead_ms: int | None = None

    def read(self) -> HostReading:
        memory = _memory(self._root)
        return HostReading(
            nics=tuple(nics(self._root)),
            disks=tuple(_disk(path) for path in self._disks),
            memory_mib=memory.get("MemTotal"),
            memory_available_mib=memory.get("MemAvailable"),
            load_percent=_load_percent(),
            clock=self._clock(),
        )

    def _clock(self) -> ClockReading:
        """The wall clock and the boot clock, which also counts during sleep, advance together unless one is set."""
        ahead_ms = (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000
        before, self._wall_ahead_ms = self._wall_ahead_ms, ahead_ms
        is_synchronised, error_ms = _kernel_clock()
        return ClockReading(is_synchronised, error_ms, None if before is None else ahead_ms - before)


def nics(root: Path = Path("/")) -> Iterator[NicReading]:
    """Physical network cards: not loopback, bridges, tunnels or interfaces of containers."""
    try:
        names = sorted(os.listdir(root / "sys/class/net"))
    except OSError:
        return
    for name in names:
        place = root / "sys/class/net" / name
        if not (place / "device").exists():
            continue
        errors = [number_in(place / "statistics" / each) for each in _ERRORS]
        known = [count for count in errors if count is not None]
        speed = number_in(place / "speed")
        state = _text(place / "operstate")
        yield NicReading(
            name,
            {"up": True, "down": False, "lowerlayerdown": False}.get(state or ""),
            speed if speed is not None and speed > 0 else None,
            sum(known) if known else None,
        )


def _disk(path: Path) -> DiskReading:
    try:
        about = os.statvfs(path)
    except OSError as met:
        return DiskReading(str(path), fault=met.strerror or str(met))
    is_read_only = bool(about.f_flag & os.ST_RDONLY)
    write_ms, fault = (None, None) if is_read_only else _write(path)
    return DiskReading(
        str(path),
        about.f_bavail * about.f_frsize // _MIB,
        about.f_blocks * about.f_frsize // _MIB,
        is_read_only,
        write_ms,
        fault,
    )


def _write(path: Path) -> tuple[int | None, str | None]:
    """How long a small write takes until it is on the disk, and its error. A full disk shows in its free space."""
    began, probe = time.monotonic(), path / f".corral-probe-{os.getpid()}"
    try:
        with os.fdopen(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb", buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
        return int((time.monotonic() - began) * 1000), None
    except OSError as met:
        return None, None if met.errno in (errno.ENOSPC, errno.EDQUOT) else met.strerror or str(met)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _memory(root: Path) -> dict[str, int]:
    found = {}
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) // 1024
    return found


def _load_percent() -> int | None:
    try:
        return int(os.getloadavg()[0] * 100 / max(len(os.sched_getaffinity(0)), 1))
    except OSError:
        return None


class _Timex(ctypes.Structure):
    """The part of struct timex (adjtimex(2)) that is used, and space for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def _kernel_clock() -> tuple[bool | None, int | None]:
    """Whether the clock is synchronised according to the kernel, and its estimated error."""
    try:
        about = _Timex()
        if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(about)) < 0:
            return None, None
    except (OSError, AttributeError):
        return None, None
    return not about.status & _STA_UNSYNC, about.esterror // 1000


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None  # a card that is down does not report its speed


def number_in(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None
