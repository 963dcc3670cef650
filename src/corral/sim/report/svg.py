"""Charts as SVG text: axes, lines, bands and boxes, without a library (docs/decisions/0007-svg-by-hand.md).

Knows shapes and numbers, not their meaning. Every text from outside is escaped here.
Colours are names of CSS classes (``c0`` to ``c7``), so that the page decides how they look on light and on dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count

from msgspec import Struct

from corral.duration_text import span

COLOURS = 8
LEFT = 62
RIGHT = 14
TOP = 12
BOTTOM = 34

#: (x, y), both from 0 to 1, from the lower left corner
Point = tuple[float, float]

_DAY_MS = 86_400_000
_TIME_STEPS_MS = tuple(
    unit * many
    for unit, manies in (
        (1, (1, 10, 100)),
        (1_000, (1, 5, 15, 30)),
        (60_000, (1, 5, 15, 30)),
        (3_600_000, (1, 3, 6, 12)),
        (_DAY_MS, (1, 2, 5, 10, 30, 90, 365)),
    )
    for many in manies
)
_LOG_TICKS_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 345_600_000, 3_456_000_000, 34_560_000_000)


class Axis(Struct, frozen=True):
    """From one value to another, with labelled ticks between them."""

    lo: float
    hi: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        """The position of a value: 0 at the low end, 1 at the high end, never outside."""
        lo, hi = self.lo, self.hi
        value = min(max(value, lo), hi)
        if self.is_log:
            lo = math.log(lo)
            hi = math.log(hi)
            value = math.log(value)
        return (value - lo) / (hi - lo) if hi > lo else 0.0


def text(value: object) -> str:
    """Text escaped for HTML and SVG, also in an attribute. Control characters are made visible."""
    shown = "".join(each if _can_be_shown(each) else "\N{REPLACEMENT CHARACTER}" for each in str(value))
    return escape(shown, quote=True)


def _can_be_shown(letter: str) -> bool:
    return letter.isprintable() or letter == "\N{NO-BREAK SPACE}"


# ---- axes ----------------------------------------------------------------------------------------------------------


def amount_axis(hi: float, unit: str = "") -> Axis:
    """From 0 to a round number at or above the greatest value."""
    step = _round_step(hi / 5)
    many = max(1, math.ceil(hi / step - 1e-9))
    return Axis(0, many * step, tuple((n * step, f"{n * step:,g}{unit}") for n in range(many + 1)))


def _round_step(least: float) -> float:
    if least <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(least))
    return next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= least * (1 - 1e-9))


def time_axis(since_ms: int, until_ms: int) -> Axis:
    """Time since the beginning, with ticks at round durations."""
    length = max(1, until_ms - since_ms)
    step = next((step for step in _TIME_STEPS_MS if length / step <= 8), length // 8)
    ticks = range(0, length + 1, step)
    return Axis(since_ms, since_ms + length, tuple((since_ms + tick, span(tick)) for tick in ticks))


def log_time_axis(greatest_ms: float) -> Axis:
    """Durations from a second on, by powers; shorter ones are at the left edge."""
    hi = next((tick for tick in _LOG_TICKS_MS[1:] if tick >= greatest_ms), _LOG_TICKS_MS[-1])
    ticks = tuple((float(tick), span(tick)) for tick in _LOG_TICKS_MS)
    return Axis(_LOG_TICKS_MS[0], hi, tuple(tick for tick in ticks if tick[0] <= hi), is_log=True)


# ---- shapes --------------------------------------------------------------------------------------------------------


class Canvas:
    """Collects the shapes of one chart. Points are given from 0 to 1 and placed between the axes."""

    def __init__(self, width: int = 640, height: int = 260, left: int = LEFT) -> None:
        self.width = width
        self.height = height
        self.left = left
        self._shapes: list[str] = []

    def x(self, part: float) -> str:
        return _number(self.left + part * (self.width - self.left - RIGHT))

    def y(self, part: float) -> str:
        return _number(TOP + (1 - part) * (self.height - TOP - BOTTOM))

    def line(self, points: Sequence[Point], colour: int, dash: int = 0) -> None:
        if points:
            self._shapes.append(f'<path class="line c{colour % COLOURS} d{dash % 4}" d="{self._path(points)}"/>')

    def band(self, upper: Sequence[Point], lower: Sequence[Point], colour: int, kind: str = "band") -> None:
        """The area between two lines."""
        if upper:
            outline = self._path([*upper, *reversed(lower)])
            self._shapes.append(f'<path class="{kind} c{colour % COLOURS}" d="{outline}Z"/>')

    def box(self, at: Point, to: Point, colour: int, tip: str, kind: str = "box") -> None:
        x, y = float(self.x(at[0])), float(self.y(to[1]))
        width, height = max(0.4, float(self.x(to[0])) - x), max(0.4, float(self.y(at[1])) - y)
        place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._shapes.append(f'<rect class="{kind} c{colour % COLOURS}" {place}><title>{text(tip)}</title></rect>')

    def hover(self, since: float, until: float, tip: str) -> None:
        """Values that are shown when the pointer is between two places, over the whole height."""
        x, y = float(self.x(since)), float(self.y(1))
        place = f'x="{_number(x)}" y="{_number(y)}"'
        size = f'width="{_number(max(0.4, float(self.x(until)) - x))}" height="{_number(float(self.y(0)) - y)}"'
        self._shapes.append(f'<rect class="hover" {place} {size}><title>{text(tip)}</title></rect>')

    def axes(self, across: Axis, up: Axis) -> None:
        """Grid lines with their labels; drawn first, so that everything else lies on top."""
        for value, label in across.ticks:
            x = self.x(across.place(value))
            self._shapes.append(f'<path class="grid" d="M{x} {self.y(0)}V{self.y(1)}"/>')
            self._shapes.append(f'<text class="tick mid" x="{x}" y="{self.height - BOTTOM + 16}">{text(label)}</text>')
        for value, label in up.ticks:
            y = self.y(up.place(value))
            self._shapes.append(f'<path class="grid" d="M{self.x(0)} {y}H{self.x(1)}"/>')
            self._shapes.append(f'<text class="tick end" x="{self.left - 6}" y="{y}" dy="0.32em">{text(label)}</text>')
        self._shapes.append(f'<path class="axis" d="M{self.x(0)} {self.y(0)}H{self.x(1)}"/>')

    def label(self, at: Point, words: str) -> None:
        """A label at the left edge of a row."""
        self._shapes.append(
            f'<text class="tick end" x="{self.left - 6}" y="{self.y(at[1])}" dy="0.32em">{text(words)}</text>'
        )

    def note(self, words: str) -> None:
        """A text in the middle, if there is nothing to draw."""
        self._shapes.append(f'<text class="note mid" x="{self.x(0.5)}" y="{self.y(0.5)}">{text(words)}</text>')

    def svg(self, number: int, title: str, description: str) -> str:
        """The whole chart. ``number`` makes its ids unique on the page."""
        names = f'aria-labelledby="t{number} d{number}"'
        head = f'<title id="t{number}">{text(title)}</title><desc id="d{number}">{text(description)}</desc>'
        shapes = "".join(self._shapes)
        return f'<svg role="img" {names} viewBox="0 0 {self.width} {self.height}">{head}{shapes}</svg>'

    def _path(self, points: Iterable[Point]) -> str:
        return "".join(
            f"{'L' if n else 'M'}{self.x(x)} {self.y(y)}" for n, (x, y) in zip(count(), points, strict=False)
        )


def _number(value: float) -> str:
    """A coordinate to a tenth of a pixel, in as few characters as possible."""
    return f"{value:.1f}".removesuffix(".0")
