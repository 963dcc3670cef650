"""Amounts as users write them, ``gpus=8,memory=512GiB``, and as the API has them, ``{"gpu_milli": 8000, ...}``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from corral.amount_text import quantity, thousandths
from corral.cli.errors import Complaint

_TYPOS = {
    "gpu": "gpus", "cpu": "cpus", "mem": "memory", "ram": "memory", "cores": "cpus", "gpu_milli": "gpus",
    "cpu_milli": "cpus", "memory_mib": "memory", "disk_mib": "disk", "storage": "disk",
}  # fmt: skip
_NAMES = {"gpus": "gpu_milli", "cpus": "cpu_milli", "memory": "memory_mib", "disk": "disk_mib"}


def parse_amounts(text: str, option: str) -> dict[str, int]:
    """``gpus=8,cpus=64,memory=512GiB,license=2``."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise Complaint(f"{option} cannot be {text!r}", "write it like gpus=8,cpus=64,memory=512GiB")
        _check_name(name, option)
        found[_NAMES.get(name, name)] = _amount(name, value, option)
    return found


def _check_name(name: str, option: str) -> None:
    """Other names are resources of the site, such as licences; a name that is nearly a known one is a mistake."""
    near = _TYPOS.get(name.lower()) or next(iter(difflib.get_close_matches(name.lower(), _NAMES, 1, 0.75)), None)
    if near is not None and name not in _NAMES:
        raise Complaint(f"{option}: there is no resource {name!r}", f"did you mean {near}?")
    if not name:
        raise Complaint(f"{option} names no resource", "write it like gpus=8,cpus=64,memory=512GiB")


def _amount(name: str, value: str, option: str) -> int:
    if name in ("memory", "disk"):
        from corral.core.intake.refusal import Refusal
        from corral.wire.sizes import parse_size

        size = parse_size(value)
        if isinstance(size, Refusal):
            raise Complaint(f"{option}: {name}: {size.why}", size.hint)
        return size
    whole, _, part = value.partition(".")
    if not (whole + part).isdecimal() or len(part) > 3 or (part and name not in ("gpus", "cpus")):
        raise Complaint(f"{option}: {name}: {value!r} is not a number", "write it like gpus=8")
    return int(whole or 0) * 1000 + int(part.ljust(3, "0")) if name in ("gpus", "cpus") else int(whole)


def amounts_text(stated: Mapping[str, int]) -> str:
    order = [*_NAMES.values(), *sorted(stated)]
    return ", ".join(quantity(name, stated[name]) for name in dict.fromkeys(order) if name in stated)


def gpus_text(stated: Mapping[str, int]) -> str:
    """The number of GPUs; ``-`` if none is stated."""
    return thousandths(stated["gpu_milli"]) if "gpu_milli" in stated else "-"
