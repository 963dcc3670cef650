"""How long the ranks of a task are busy with a step, as they have written it down themselves.

Reads small files in a folder that belongs to the task's account, which may put anything there: what is no short plain
file with two numbers is left aside.
"""

from __future__ import annotations

import os
import stat

PACE = "pace."  # and the rank
_RANKS_MAX, _BYTES_MAX = 64, 64
_BUSY_MS_MAX = 86_400_000


def read_paces(folder: str) -> tuple[tuple[int, int], ...]:
    """(rank, milliseconds), by rank; empty: nobody has said anything."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(PACE) and name[len(PACE) :].isdecimal()]
    except OSError:
        return ()
    found = ((int(name[len(PACE) :]), _read(f"{folder}/{name}")) for name in names[:_RANKS_MAX])
    return tuple(sorted((rank, busy_ms) for rank, busy_ms in found if busy_ms is not None))


def _read(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        said = os.read(fd, _BYTES_MAX).strip() if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(fd)
    return min(int(said), _BUSY_MS_MAX) if said.isdigit() else None
