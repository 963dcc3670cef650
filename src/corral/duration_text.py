"""Durations as text: ``90s``, ``45m``, ``1d12h``. Pure; `corral.wire.durations` reads what is written here."""

from __future__ import annotations

UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def span(ms: int) -> str:
    """For people: the two largest parts, without parts of a second from one second on: 1h30m, 45s, 850ms."""
    return "".join(_parts(ms - ms % 1_000 if ms >= 1_000 else ms)[:2]) or "0s"


def write_span(ms: int) -> str:
    """Exactly, for files and messages."""
    return "".join(_parts(ms)) or "0s"


def without_spans(text: str) -> str:
    """What stays the same while time passes."""
    import re

    return re.sub(r"\b(?:\d+(?:ms|[dhms]))+\b", "", text)


def _parts(ms: int) -> list[str]:
    parts = []
    for unit, size in UNITS_MS.items():
        count, ms = divmod(max(0, ms), size)
        if count:
            parts.append(f"{count}{unit}")
    return parts
