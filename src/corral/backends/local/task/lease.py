"""How long the tasks of this machine may go on without word from the server: a moment on the clock of this boot.

Whoever may speak for the machine (its agent) writes the moment into a file, whole, again and again; every supervisor
reads it for itself, so that tasks end in time even when the agent is dead or frozen. CLOCK_BOOTTIME: it counts while
the machine sleeps, and nobody can set it. It begins again with every boot, so the file names the boot as well: a lease
of another boot is over. Knows a file and a clock. Without a file there is no bound.
"""

from __future__ import annotations

import os
import time

from corral.backends.local.task import records

#: In the run directory.
LEASE = "lease"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOMENT = 32  # bytes
WHY = "the lease of this machine ran out: no word from the server for too long, so its GPUs may be given to others"


def now_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def boot_id() -> bytes:
    """Another one after every start of the machine; empty, which is the boot of no lease, where it cannot be read."""
    return _read(_BOOT_ID, 64).strip()


def write(path: str, until_ms: int) -> None:
    """The moment in exactly 32 bytes: supervisors of earlier versions, which may still run, read no further."""
    records.write_whole(path, b"%31d\n%s\n" % (until_ms, boot_id()))


def read(path: str) -> int:
    """0, which is long past, where there is no lease of this boot. One that does not say of which boot it is, as
    earlier versions wrote it, may be of any: it is over, and the agent's next renewal writes another."""
    text = _read(path, 128)
    moment, boot = text[:_MOMENT], text[_MOMENT:].strip()
    try:
        return int(moment) if boot and boot == boot_id() else 0
    except ValueError:
        return 0


def _read(path: str, most: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, most)
    except OSError:
        return b""
    finally:
        os.close(fd)


class Lease:
    """As a supervisor sees it. The file is read only when the moment that it named has come: it is only ever
    prolonged."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._until_ms = 0

    def left_ms(self) -> int | None:
        """0: it is over. None: there is no bound."""
        if not self._path:
            return None
        now = now_ms()
        if now >= self._until_ms:
            self._until_ms = read(self._path)
        return max(self._until_ms - now, 0)
