"""How long the ranks of a task are busy with a step, as they have recorded it themselves.

Reads small files in a directory of the task's account, which may put anything there: whatever is not a short regular
file with a number is ignored.
"""

from __future__ import annotations

import os
import stat
from itertools import islice

PACE = "pace."  # and the rank
_RANKS_MAX, _BYTES_MAX = 64, 64
_ENTRIES_MAX, _RANK_MAX = 10_000, 1 << 20
_BUSY_MS_MAX = 86_400_000


def read_paces(folder: str) -> tuple[tuple[int, int], ...]:
    """(rank, milliseconds), by rank. Empty: none has recorded anything."""
    try:
        with os.scandir(folder) as entries:
            ranks = [rank for each in islice(entries, _ENTRIES_MAX) if (rank := _rank(each.name)) is not None]
    except OSError:
        return ()
    found = ((rank, _read(f"{folder}/{PACE}{rank}")) for rank in sorted(ranks)[:_RANKS_MAX])
    return tuple((rank, busy_ms) for rank, busy_ms in found if busy_ms is not None)


def _rank(name: str) -> int | None:
    """The rank in a file name of the exact form ``pace.7``, and not ``pace.007``."""
    stated = name[len(PACE) :]
    if not name.startswith(PACE) or not (stated.isascii() and stated.isdecimal() and len(stated) < 8):
        return None
    rank = int(stated)
    return rank if rank <= _RANK_MAX and str(rank) == stated else None


def _read(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, _BYTES_MAX).strip() if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(fd)
    return min(int(text), _BUSY_MS_MAX) if text.isdigit() else None
