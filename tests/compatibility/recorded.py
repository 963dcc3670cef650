"""What an earlier version recorded, and how an answer is compared with one of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = Path(__file__).parent / "0.1"


def recorded(name: str) -> Any:
    return json.loads((VERSION / name).read_text(encoding="utf-8"))


def lacking(old: Any, new: Any, at: str = "", *, values: bool = False) -> Iterator[str]:
    """What a client of the old version would miss in a new answer: fields, or fields of another type.

    None says nothing about a type. ``values``: values must be equal, too. Lists are compared as far as both go.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key in new:
                yield from lacking(value, new[key], f"{at}.{key}", values=values)
            else:
                yield f"{at}.{key} is missing"
    elif isinstance(old, list) and isinstance(new, list):
        if old and not new:
            yield f"{at} is empty"
        for n, (before, now) in enumerate(zip(old, new, strict=False)):
            yield from lacking(before, now, f"{at}[{n}]", values=values)
    elif (values and old != new) or (old is not None and new is not None and type(old) is not type(new)):
        yield f"{at} was {old!r}, is {new!r}"
