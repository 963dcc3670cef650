"""Usage that is forgotten with a half-life, in integers, and the same on every machine.

Time is cut into cells of 1/1024 of a half-life; whatever was used decays at the border of a cell and not within it.
So a value does not depend on how often it was looked at. Knows nothing of queues.
"""

from __future__ import annotations

from math import isqrt

from msgspec import Struct

CELLS = 1024
_ONE = 1 << 48


def _powers() -> list[int]:
    """2 ** (-i / CELLS) as a fraction of _ONE, by repeated integer square roots."""
    roots = []
    root = _ONE // 2
    for _ in range(CELLS.bit_length() - 1):
        root = isqrt(root * _ONE)
        roots.append(root)  # 2 ** -1/2, 2 ** -1/4, ...
    powers = []
    for i in range(CELLS):
        power = _ONE
        for place, root in enumerate(roots):
            if i >> (len(roots) - 1 - place) & 1:
                power = power * root // _ONE
        powers.append(power)
    return powers


_POWER = _powers()
_STEP = _POWER[1]


def decayed(value: int, cells: int) -> int:
    """The value after this many cells."""
    return (value >> (cells // CELLS)) * _POWER[cells % CELLS] // _ONE


class Usage(Struct):
    """An amount in use over time: ``rate`` units now, and the decayed sum of units x milliseconds so far."""

    value: int = 0
    rate: int = 0
    at_ms: int = 0

    def at(self, now_ms: int, half_life_ms: int) -> int:
        """The decayed sum at a time not before the last change."""
        if not half_life_ms or now_ms <= self.at_ms:
            return self.value if half_life_ms else 0
        first, last = self.at_ms * CELLS // half_life_ms, now_ms * CELLS // half_life_ms
        if first == last:
            return self.value + self.rate * (now_ms - self.at_ms)
        if not self.rate:
            return decayed(self.value, last - first)
        to_border = (first + 1) * half_life_ms // CELLS - self.at_ms
        value = decayed(self.value + self.rate * max(0, to_border), last - first)
        whole = self.rate * half_life_ms // CELLS
        # the whole cells in between: a geometric series from one step of decay up to last - first - 1 of them
        value += whole * (_STEP - decayed(_ONE, last - first)) // (_ONE - _STEP)
        return value + self.rate * max(0, now_ms - last * half_life_ms // CELLS)

    def change(self, delta: int, now_ms: int, half_life_ms: int) -> None:
        self.value = self.at(now_ms, half_life_ms)
        self.at_ms = max(self.at_ms, now_ms)
        self.rate += delta
