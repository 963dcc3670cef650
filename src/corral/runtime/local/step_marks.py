"""At which step the ranks of a task can stop together: read from the marks that `corral_training.should_stop` leaves.

Each rank writes a number before and after it looks for a warning: the step it asks about, and whether it is still
asking, continues, or waits. Once the warning is there, every rank that asks waits, so the marks do not change any more,
and every reader finds the same step. Knows the files of one task; ranks on other nodes have
their own, and the largest step of all counts. The directory belongs to the account of the task: whatever is not a mark
is ignored.
"""

from __future__ import annotations

import os
import stat

MARK = "at."  # and the rank
STEP_MAX = (1 << 53) - 1
_BYTES = 8
_ENTRIES_MAX = 10_000
#: The last two bits of a mark; the rest is the step.
ASKING = 0
CONTINUES = 1
WAITS = 2


class StopMarks:
    """Reads the marks until they have settled. ``waited_s_max``: a rank that is still asking after that is frozen, or
    its mark was not written by `should_stop`; it counts as one that continues."""

    def __init__(self, folder: str, now_s: float, settle_s: float = 0.02, waited_s_max: float = 1.0) -> None:
        self._folder = folder
        self._look_at_s = now_s + settle_s
        self._end_s = now_s + waited_s_max
        self._settle_s = settle_s
        self._before: list[int] | None = None

    def step(self, now_s: float) -> int | None:
        """The first step at which all ranks of this task can stop. None: not known yet, ask again soon."""
        if now_s < self._look_at_s:
            return None
        marks = _read_all(self._folder)
        before, self._before = self._before, marks
        self._look_at_s = now_s + self._settle_s
        if now_s < self._end_s and (marks != before or any(mark & 3 == ASKING for mark in marks)):
            return None
        return earliest_stop(marks)


def earliest_stop(marks: list[int]) -> int:
    """A rank that waits can stop at the step it asks about; one that continues, at the next one. 0: no rank
    has asked yet, so all can stop at once."""
    return min(max((mark >> 2 if mark & 3 == WAITS else (mark >> 2) + 1 for mark in marks), default=0), STEP_MAX)


def _read_all(folder: str) -> list[int]:
    try:
        names = sorted(name for name in os.listdir(folder)[:_ENTRIES_MAX] if name.startswith(MARK))
    except OSError:
        return []
    found = [_read(f"{folder}/{name}") for name in names if name[len(MARK) :].isdecimal()]
    return [mark for mark in found if mark is not None]


def _read(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, _BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(fd)
    mark = int.from_bytes(text, "little") if len(text) == _BYTES else -1
    return mark if 0 <= mark >> 2 <= STEP_MAX and mark & 3 <= WAITS else None
