"""How long the tasks of this machine may go on without word from the server: a moment on the clock of this boot.

Whoever may speak for the machine (its agent) writes the moment into a file, whole, again and again; every supervisor
reads it for itself, so that tasks end in time even when the agent is dead or frozen. CLOCK_BOOTTIME: it counts while
the machine sleeps, and nobody can set it. Knows a file and a clock. Without a file there is no bound.
"""

from __future__ import annotations

import os
import time

from corral.backends.local.task import records

#: In the run directory.
LEASE = "lease"
WHY = "the lease of this machine ran out: no word from the server for too long, so its GPUs may be given to others"


def now_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def write(path: str, until_ms: int) -> None:
    records.write_whole(path, str(until_ms).encode())


def read(path: str) -> int:
    """0, which is long past, where there is no lease."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 32))
    except (OSError, ValueError):
        return 0
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
