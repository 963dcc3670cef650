"""Numbers as text: durations, shares, amounts. Does not know what they measure."""

from __future__ import annotations

from corral.duration_text import span

NOTHING = "–"


def duration(ms: float | None) -> str:
    return NOTHING if ms is None else span(round(ms))


def share(part: float | None) -> str:
    return NOTHING if part is None else f"{100 * part:.1f} %"


def count(number: float | None) -> str:
    return NOTHING if number is None else f"{number:,.0f}"


def ratio(number: float | None) -> str:
    return NOTHING if number is None else digits(number)


def index(number: float | None) -> str:
    """For numbers between 0 and 1 that differ only in late digits."""
    return NOTHING if number is None else f"{number:.3f}"


def digits(number: float) -> str:
    """About three significant digits; whole numbers from a hundred on."""
    size = abs(number)
    if size >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if size >= 10 else f"{number:.2f}"
