"""How long to wait before asking again: longer each time, never the same for two agents that lost the same server.

Knows numbers; chance comes in from outside.
"""

from __future__ import annotations

from collections.abc import Callable

_FIRST_S, _LONGEST_S = 0.1, 2.0


class Pace:
    """``chance`` gives numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance, self._failures = chance, 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait."""
        self._failures += 1
        most = min(_LONGEST_S, _FIRST_S * float(2 ** min(self._failures - 1, 10)))
        return most * (0.5 + self._chance() / 2)
