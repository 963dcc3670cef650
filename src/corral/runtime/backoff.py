"""How long to wait before trying again: longer each time, up to a limit.

Knows numbers; randomness is passed in, so that agents that lost the same server do not all retry at the same time.
"""

from __future__ import annotations

from collections.abc import Callable

_DOUBLINGS_MAX = 30  # keeps the numbers small; the limit is reached long before


class Backoff:
    """``chance`` returns numbers from 0 to 1: a wait is from half to all of the present step."""

    def __init__(self, chance: Callable[[], float], first_s: float = 0.1, longest_s: float = 2.0) -> None:
        self._chance = chance
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Count a failure. Returns the seconds to wait."""
        self._failures += 1
        step_s = self._first_s * float(2 ** min(self._failures - 1, _DOUBLINGS_MAX))
        return min(self._longest_s, step_s) * (0.5 + self._chance() / 2)
