"""The lease of this machine: until when its tasks may run without news from the server, on the clock of this boot.

The agent writes the time to a file again and again, atomically. Every supervisor reads it by itself, so that tasks end
in time even if the agent is dead or frozen. CLOCK_BOOTTIME counts while the machine sleeps, and cannot be set. It
starts again with every boot, so the file names the boot as well: a lease of another boot has expired. Knows a file and
a clock. Without a file there is no limit.
"""

from __future__ import annotations

import time

from corral.io.files import write_file
from corral.runtime.local.task import records

#: In the run directory.
LEASE = "lease"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOMENT = 32  # bytes of the time in the file
WHY = "the lease of this machine expired: the server was not reachable for too long and may give its GPUs to others"


def now_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def boot_id() -> bytes:
    """Different after every boot. Empty if it cannot be read, which is the boot of no lease."""
    return records.read_start(_BOOT_ID, 64).strip()


def write(path: str, until_ms: int) -> None:
    """The time takes exactly 32 bytes: supervisors of earlier versions, which may still run, read no further."""
    write_file(path, b"%31d\n%s\n" % (until_ms, boot_id()), durable=False)


def read(path: str) -> int:
    """0, which is long past, if there is no lease of this boot. A lease without a boot, as earlier versions wrote it,
    may be of any: it counts as expired, and the agent's next renewal writes another."""
    text = records.read_start(path, 128)
    moment, boot = text[:_MOMENT], text[_MOMENT:].strip()
    try:
        return int(moment) if boot and boot == boot_id() else 0
    except ValueError:
        return 0


class TaskLease:
    """The lease as a supervisor sees it. It reads the file again only when the known time has passed: a lease is never
    shortened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._until_ms = 0

    def left_ms(self) -> int | None:
        """0: it has expired. None: there is no limit."""
        if not self._path:
            return None
        now = now_ms()
        if now >= self._until_ms:
            self._until_ms = read(self._path)
        return max(self._until_ms - now, 0)
