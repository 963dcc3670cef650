"""Amounts as text for people: ``8 GPUs``, ``0.5 CPUs``, ``1.5 GiB of memory``, ``12.5 GPU-hours``. Pure.

Knows the units that names of amounts end in (``gpu_milli``, ``memory_mib``). No message shows those names or their
numbers.
"""

from __future__ import annotations

_COUNTED = {"gpu_milli": "GPU", "cpu_milli": "CPU"}


def quantity(name: str, value: int) -> str:
    """An amount with its unit. ``gpu_milli:H100``: of one model."""
    base, _, model = name.partition(":")
    if base in _COUNTED:
        unit = _COUNTED[base] if value == 1000 else f"{_COUNTED[base]}s"
        return f"{thousandths(value)} {unit}" + (f" of {model}" if model else "")
    if base.endswith("_mib"):
        return f"{size(value)} of {base.removesuffix('_mib')}"
    return f"{value:,} {name}"


def size(mib: int) -> str:
    """Of memory or disk: GiB with one decimal, rounded down; MiB below one GiB."""
    if mib < 1024:
        return f"{mib} MiB"
    return f"{mib * 10 // 1024 / 10:,.1f}".removesuffix(".0") + " GiB"


def gpu_hours(gpu_ms: int) -> str:
    return f"{thousandths(gpu_ms // 3600)} GPU-hours"


def thousandths(value: int) -> str:
    """A value in thousandths as a decimal number."""
    whole, rest = divmod(abs(value), 1000)
    return "-" * (value < 0) + (f"{whole:,}.{rest:03d}".rstrip("0") if rest else f"{whole:,}")
