"""How long to wait before trying again: twice as long each time, up to a limit.

Knows numbers. A wait is from half to all of the present step, so that clients that lost the same server do not all
retry at the same time.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_DOUBLINGS_MAX = 30  # keeps the numbers small; the limit is reached long before


def chance() -> float:
    """A random number from 0 to 1. (Importing random would take too long.)"""
    return os.urandom(1)[0] / 255


def no_chance() -> float:
    """For one client alone: every wait is all of its step."""
    return 1.0


class Backoff:
    """The waits of one sequence of attempts. ``chance`` returns numbers from 0 to 1."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 2.0, chance: Callable[[], float] = chance) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._chance = chance
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Count a failure. Returns the seconds to wait."""
        step_s = self._first_s * float(1 << min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        return min(self._longest_s, step_s) * (0.5 + self._chance() / 2)
