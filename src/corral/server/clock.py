"""The time of the server: it begins with the wall clock and then runs on, whatever is done to the wall clock."""

from __future__ import annotations

import time


class Clock:
    """Milliseconds since 1970. ``not_before_ms``: what the journal has seen already; time never goes back behind it."""

    def __init__(self, not_before_ms: int = 0) -> None:
        self._offset_ns = max(time.time_ns(), not_before_ms * 1_000_000) - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000
