"""Sizes and ranges as users write them: ``64GiB``, ``40GB``, ``512Mi``; ``40GB..80GB``, ``40GB..``, ``2..8``.

``Ki Mi Gi Ti`` (with or without B) are powers of 1024, ``KB MB GB TB`` powers of 1000. A letter alone is refused, since
Slurm reads 64G as binary and Kubernetes as decimal. Exact: no floats. Knows texts only, not jobs or files.

VRAM is the exception that vendors force: the card sold as 80 GB reports 81,559 MiB, between 80 * 10^9 bytes (76,293
MiB) and 80 * 2^30 (81,920 MiB), and the one of 48 GB reports 46,068 MiB. So in a range of VRAM a decimal unit is
decimal as the lower bound and binary as the upper one: every card is within the size that it is sold as.
"""

from __future__ import annotations

import re

from msgspec import Struct

from corral.core.intake.refusal import Refusal

_BINARY = {unit: 1 << (10 * (n + 1)) for n, unit in enumerate("kmgt")}
_DECIMAL = {unit: 1000 ** (n + 1) for n, unit in enumerate("kmgt")}
UNITS = (
    {"b": 1}
    | {f"{unit}ib": size for unit, size in _BINARY.items()}
    | {f"{unit}i": size for unit, size in _BINARY.items()}
    | {f"{unit}b": size for unit, size in _DECIMAL.items()}
)
MIB = 1 << 20
MOST_MIB = 1 << 40  # a million TiB: more is probably a mistake

_SIZE = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_EXAMPLES = "write it like 512MiB, 64GiB or 40GB"


class Range(Struct, frozen=True, gc=False):
    """From ``low`` to ``high``, both included; None: open on that side."""

    low: int | None
    high: int | None


def parse_size(text: str) -> int | Refusal:
    """MiB, rounded up: never less than requested."""
    found = parse_bytes(text)
    return found if isinstance(found, Refusal) else -(-found // MIB)


def parse_bytes(text: str) -> int | Refusal:
    """Bytes, rounded up to a whole number. A bare 0 is a size, other bare numbers are not."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return Refusal("bad_size", f"{text[:40]!r} is not a size", _EXAMPLES)
    whole = match[1]
    decimals = match[2] or ""
    unit = match[3].lower()
    if unit not in UNITS:
        return _wrong_unit(text.strip(), match[1] + (f".{match[2]}" if match[2] else ""), unit)
    scale = int("1" + "0" * len(decimals))
    total: int = -(-int(whole + decimals) * UNITS[unit] // scale)
    if total > MOST_MIB * MIB:
        return Refusal("bad_size", f"{text[:40]!r} is more than a million TiB", _EXAMPLES)
    return total


def _wrong_unit(text: str, number: str, unit: str) -> int | Refusal:
    if not unit:
        if not number.strip("0."):
            return 0
        return Refusal("bad_size", f"{text[:40]!r} has no unit", f"write {number}GiB or {number}GB")
    if unit in _BINARY:
        letter = unit.upper()
        hint = f"write {number}{letter}iB (powers of 1024) or {number}{letter}B (powers of 1000)"
        return Refusal("bad_size", f"{text[:40]!r} is ambiguous", hint)
    return Refusal("bad_size", f"{text[:40]!r} has the unknown unit {unit[:20]!r}", _EXAMPLES)


def write_size(mib: int) -> str:
    """The same size exactly, in the largest unit that divides it: ``parse_size`` reads it back."""
    for unit, size in (("TiB", 1 << 20), ("GiB", 1 << 10)):
        if mib and mib % size == 0:
            return f"{mib // size}{unit}"
    return f"{mib}MiB"


# --- ranges ------------------------------------------------------------------------------------------------------


def parse_vram(text: str) -> Range | Refusal:
    """``40GB..``, ``40GB..80GB``, ``..48GB``, ``>=40GB``, ``<=80GB``, or ``80GB``: a card of that size. In MiB."""
    ends = _ends(text)
    if isinstance(ends, Refusal):
        return ends
    low = _bound(ends[0], is_low=True)
    high = _bound(ends[1], is_low=False)
    if isinstance(low, Refusal):
        return low
    if isinstance(high, Refusal):
        return high
    return _ordered(text, low, high)


def _bound(text: str, *, is_low: bool) -> int | Refusal | None:
    if not text:
        return None
    if is_low:
        found = parse_bytes(text)
        return found if isinstance(found, Refusal) else found // MIB
    return parse_size(re.sub(r"(?i)(?<=[kmgt])b\s*$", "iB", text))


def write_vram(low: int, high: int | None) -> str:
    """The same range exactly; no lower bound is written as 0 if there is no upper one either."""
    if high is None:
        return f"{write_size(low)}.."
    return f"{write_size(low) if low else ''}..{write_size(high)}"


def parse_counts(text: str) -> Range | Refusal:
    """``2..8``, ``2..``, ``..8`` or ``4``: whole numbers that are not negative."""
    ends = _ends(text)
    if isinstance(ends, Refusal):
        return ends
    for end in ends:
        if end and (len(end) > 15 or not (end.isascii() and end.isdigit())):
            return Refusal("bad_range", f"{end[:40]!r} is not a whole number", "write it like 4 or 2..8")
    low, high = (int(end) if end else None for end in ends)
    return _ordered(text, low, high)


def _ends(text: str) -> tuple[str, str] | Refusal:
    bare = text.strip()
    if bare.startswith(">="):
        bare = f"{bare[2:]}.."
    elif bare.startswith("<="):
        bare = f"..{bare[2:]}"
    low, dots, high = (part.strip() for part in bare.partition(".."))
    if not dots:
        high = low
    if not low and not high:
        return Refusal("bad_range", f"{text[:40]!r} is not a range", "write it like 2..8, 40GB.. or ..80GB")
    return low, high


def _ordered(text: str, low: int | None, high: int | None) -> Range | Refusal:
    if low is not None and high is not None and low > high:
        return Refusal("bad_range", f"{text[:40]!r} ends before it begins", "put the smaller one first")
    return Range(low, high)
