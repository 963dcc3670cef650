"""Usage that decays with a half-life, in integers, and the same on every machine.

Time is cut into cells of 1/1024 of a half-life; usage decays at the border of a cell and not within it. So a value does
not depend on how often it was read. Does not know queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from operator import add

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


class Usage(Struct, gc=False):
    """Amounts in use over time, several side by side: how much of each now (``rates``), and the decayed sums of
    amount x milliseconds so far (``values``)."""

    values: tuple[int, ...]
    rates: tuple[int, ...]
    at_ms: int = 0

    @classmethod
    def none(cls, dimensions: int) -> Usage:
        return cls((0,) * dimensions, (0,) * dimensions)

    def at(self, now_ms: int, half_life_ms: int) -> tuple[int, ...]:
        """The decayed sums at a time not before the last change."""
        if not half_life_ms:
            return (0,) * len(self.values)
        if now_ms <= self.at_ms:
            return self.values
        first, last = self.at_ms * CELLS // half_life_ms, now_ms * CELLS // half_life_ms
        if first == last:
            lasting = now_ms - self.at_ms
            return tuple([value + rate * lasting for value, rate in zip(self.values, self.rates, strict=True)])
        cells = last - first
        begun = max(0, (first + 1) * half_life_ms // CELLS - self.at_ms)
        # the whole cells in between: a geometric series from one step of decay up to last - first - 1 of them
        series = _STEP - decayed(_ONE, cells)
        lately = max(0, now_ms - last * half_life_ms // CELLS)
        found = []
        for value, rate in zip(self.values, self.rates, strict=True):
            value = decayed(value + rate * begun, cells)
            if rate:
                value += rate * half_life_ms // CELLS * series // (_ONE - _STEP) + rate * lately
            found.append(value)
        return tuple(found)

    def change(self, deltas: Sequence[int], now_ms: int, half_life_ms: int) -> None:
        if now_ms > self.at_ms or not half_life_ms:
            self.values = self.at(now_ms, half_life_ms)
            self.at_ms = max(self.at_ms, now_ms)
        self.rates = tuple(map(add, self.rates, deltas))
