"""Durations as users write them: ``90s``, ``45m``, ``1d12h``, ``1.5h``.

One grammar for the command line and for files: parts from the largest unit to the smallest, each unit once. A number
without a unit is refused, because it is ambiguous. Exact: no floats.
"""

from __future__ import annotations

import re
from itertools import pairwise

from corral.core.intake.refusal import Refusal
from corral.duration_text import UNITS_MS

_UNITS_MS = {"w": 604_800_000, **UNITS_MS}
MOST_MS = 1_000 * 365 * UNITS_MS["d"]  # a thousand years: more is probably a mistake

_PART = re.compile(r"(\d+)(?:\.(\d+))?(ms|[wdhms])", re.ASCII)
_SPAN = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_EXAMPLES = "write it like 90s, 45m, 6h, 1d12h or 2w"


def parse_span(text: str) -> int | Refusal:
    """Milliseconds, rounded to the nearest. Spaces are ignored; a bare 0 is a duration, other bare numbers are not."""
    bare = "".join(text.split()).lower()
    if _NUMBER.fullmatch(bare):
        if not bare.strip("0."):
            return 0
        return Refusal("bad_span", f"{text!r} has no unit", f"write {bare}s, {bare}m, {bare}h or {bare}d")
    if _SPAN.fullmatch(bare) is None:
        return Refusal("bad_span", f"{text!r} is not a duration", _EXAMPLES)
    parts = _PART.findall(bare)
    sizes = [_UNITS_MS[unit] for _, _, unit in parts]
    if any(later >= earlier for earlier, later in pairwise(sizes)):
        why = f"{text!r} has a unit twice, or a larger one after a smaller"
        return Refusal("bad_span", why, _EXAMPLES)
    total = sum(_part_ms(whole, decimals, unit) for whole, decimals, unit in parts)
    if total > MOST_MS:
        return Refusal("bad_span", f"{text!r} is more than a thousand years", _EXAMPLES)
    return total


def _part_ms(whole: str, decimals: str, unit: str) -> int:
    scale = int("1" + "0" * len(decimals))
    return (int(whole + decimals) * _UNITS_MS[unit] * 2 + scale) // (2 * scale)
