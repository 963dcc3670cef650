"""What the ranks of a task have recorded of themselves: how long they are busy with a step, and how far they are.

Reads small files in a directory of the task's account, which may put anything there: whatever is not a short regular
file with what is expected is ignored.
"""

from __future__ import annotations

import math
import os
import re
import stat
from itertools import islice

import msgspec
from msgspec import Struct

PACE = "pace."  # and the rank
PROGRESS = "progress."
METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,39}")
FINGERPRINT = re.compile(r"[0-9A-Za-z]{1,64}")
METRICS_MAX = 16
STEP_MAX = (1 << 53) - 1
_RANKS_MAX = 64
_PACE_BYTES_MAX, _PROGRESS_BYTES_MAX = 64, 4096
_ENTRIES_MAX, _RANK_MAX = 10_000, 1 << 20
_BUSY_MS_MAX = 86_400_000


class Progress(Struct, frozen=True, gc=False):
    """``boot_ms``: when the step was done, by CLOCK_BOOTTIME. A metric that is None is nan or infinite.
    ``parameters``: a step, and the fingerprint of the parameters after it."""

    boot_ms: int
    step: int
    step_ms: int | None
    metrics: dict[str, float | None]
    parameters: tuple[int, str] | None = None


class _ProgressFile(Struct, frozen=True, gc=False):
    """What a rank writes. Texts are numbers that JSON does not have, such as nan."""

    boot_ms: int
    step: int
    step_ms: int | None = None
    metrics: dict[str, float | str] = {}
    parameters: tuple[int, str] | None = None


def read_paces(folder: str) -> tuple[tuple[int, int], ...]:
    """(rank, milliseconds), by rank. Empty: none has recorded anything."""
    texts = ((rank, text.strip()) for rank, text in _read_all(folder, PACE, _PACE_BYTES_MAX))
    return tuple((rank, min(int(text), _BUSY_MS_MAX)) for rank, text in texts if text.isdigit())


def read_progress(folder: str) -> dict[int, Progress]:
    """The progress of each rank that reports it, by rank."""
    found = ((rank, _progress(text)) for rank, text in _read_all(folder, PROGRESS, _PROGRESS_BYTES_MAX))
    return {rank: progress for rank, progress in found if progress is not None}


def _progress(text: bytes) -> Progress | None:
    try:
        stated = msgspec.json.decode(text, type=_ProgressFile)
        metrics = {name: float(value) for name, value in islice(stated.metrics.items(), METRICS_MAX)}
    except (msgspec.DecodeError, ValueError, OverflowError):
        return None
    is_time = stated.step_ms is None or 0 <= stated.step_ms <= _BUSY_MS_MAX
    if not (0 <= stated.step <= STEP_MAX and stated.boot_ms >= 0 and is_time):
        return None
    named = {
        name: value if math.isfinite(value) else None for name, value in metrics.items() if METRIC_NAME.fullmatch(name)
    }
    parameters = stated.parameters
    if parameters is not None and not (0 <= parameters[0] <= STEP_MAX and FINGERPRINT.fullmatch(parameters[1])):
        parameters = None
    return Progress(stated.boot_ms, stated.step, stated.step_ms, named, parameters)


def _read_all(folder: str, prefix: str, bytes_max: int) -> list[tuple[int, bytes]]:
    try:
        with os.scandir(folder) as entries:
            ranks = [rank for each in islice(entries, _ENTRIES_MAX) if (rank := _rank(each.name, prefix)) is not None]
    except OSError:
        return []
    found = ((rank, _read(f"{folder}/{prefix}{rank}", bytes_max)) for rank in sorted(ranks)[:_RANKS_MAX])
    return [(rank, text) for rank, text in found if text]


def _rank(name: str, prefix: str) -> int | None:
    """The rank in a file name of the exact form ``pace.7``, and not ``pace.007``."""
    stated = name[len(prefix) :]
    if not name.startswith(prefix) or not (stated.isascii() and stated.isdecimal() and len(stated) < 8):
        return None
    rank = int(stated)
    return rank if rank <= _RANK_MAX and str(rank) == stated else None


def _read(path: str, bytes_max: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, bytes_max) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
