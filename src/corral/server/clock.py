"""The time of the server: it starts with the wall clock and then runs on, even if the wall clock is changed.

Time never goes back before the last record of the journal, so a start with a clock that is far ahead cannot be undone.
A large jump of an unsynchronised clock is therefore ignored (decision 20). Knows the clocks of this machine, nothing
else.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

JUMP_MS_MAX = 7 * 86_400_000  # a wall clock further ahead of the last record must be synchronised
BEHIND_MS_MAX = 300_000
TRUST = "CORRAL_TRUST_CLOCK"  # set to 1: the wall clock is right, whatever the kernel says

_UNSYNCHRONISED = 0x40  # STA_UNSYNC of adjtimex(2)
_STATUS_AT = 5  # the field, in words: modes, offset, freq, maxerror, esterror, status


def is_synchronised() -> bool:
    """Whether the clock of the kernel is synchronised: not after it was set by hand, nor before NTP has set it."""
    if os.environ.get(TRUST) == "1":
        return True
    timex = (ctypes.c_long * 64)()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return False
    return bool(state >= 0 and not timex[_STATUS_AT] & 0xFFFFFFFF & _UNSYNCHRONISED)


class Clock:
    """Milliseconds since 1970. ``not_before_ms``: the time of the last record; time never goes back before it."""

    def __init__(self, not_before_ms: int = 0, is_right: Callable[[], bool] = is_synchronised) -> None:
        self._offset_ns = _begins_ms(_wall_ms(), not_before_ms, is_right) * 1_000_000 - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def to_wall(self, at_ms: int) -> int:
        """The same moment by the clock of this machine, as it is set now."""
        return at_ms - self.now_ms() + _wall_ms()


def _begins_ms(wall_ms: int, last_ms: int, is_right: Callable[[], bool]) -> int:
    """The start time of a server whose last record is of ``last_ms`` (0: it has none)."""
    ahead_ms = wall_ms - last_ms
    if last_ms and ahead_ms > JUMP_MS_MAX and not is_right():
        log.error(
            "clock_not_believed",
            ahead_s=ahead_ms // 1000,
            goes_on_from_ms=last_ms,
            why="the wall clock is far ahead of the last record and not synchronised; using it could not be undone",
            do=f"synchronise the clock, or set {TRUST}=1 if it is right, and restart",
        )
        return last_ms
    if -ahead_ms > BEHIND_MS_MAX:
        log.error(
            "clock_behind_the_journal",
            behind_s=-ahead_ms // 1000,
            goes_on_from_ms=last_ms,
            why="the wall clock is behind the last record: Corral's time never decreases, so times are shown too late",
            do="set the wall clock if it is wrong; see docs/operate/alarms.md",
        )
    return max(wall_ms, last_ms)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
