"""How users name jobs and parts of them: ``35``, ``35[7]``, ``35[3-9]``, ``35[1,4-6]``, ``35/trainer``.

The one parser of these names, for the command line and the API. ``35_7`` of Slurm is read as ``35[7]``, and
``35:trainer``, for addresses, as ``35/trainer``. Knows texts only, not which jobs and elements there are.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

HINT = "write it like 35, 35[7], 35[3-9], 35[1,4-6] or 35/trainer"
_LENGTH_MAX = 4096
_NAME = re.compile(
    r"(?P<job>\d{1,18})(?:\[(?P<some>[0-9,\- ]*)\]|_(?P<one>\d{1,9})|_\[(?P<many>[0-9,\- ]*)\])?"
    r"(?:[/:](?P<role>[A-Za-z0-9_.-]{1,100}))?",
    re.ASCII,
)
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class BadSelector(ValueError):
    """A text that names no job. ``hint``: what to write instead."""

    hint = HINT


class Selector(NamedTuple):
    """A job, or some of its gangs. ``indices``: elements of an array, as ranges whose last index is included; none:
    all. ``role``: empty for all roles."""

    job: str
    indices: tuple[tuple[int, int], ...] = ()
    role: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it names a whole job."""
        return not self.indices and not self.role

    def __str__(self) -> str:
        some = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.indices)
        return self.job + (f"[{some}]" if some else "") + (f"/{self.role}" if self.role else "")

    def takes(self, index: int | None, role: str) -> bool:
        """Whether it names the gang with this index and role."""
        if self.role and role != self.role:
            return False
        return not self.indices or (index is not None and self._has(index))

    def _has(self, index: int) -> bool:
        at = bisect_right(self.indices, (index, 1 << 62)) - 1
        return at >= 0 and index <= self.indices[at][1]

    def missing(self, array: Sequence[int]) -> str:
        """The first part of the indices that names no element of this array; empty if there is none."""
        known = sorted(array)
        for low, high in self.indices:
            at = bisect_left(known, low)
            if at == len(known) or known[at] > high:
                return str(low) if low == high else f"{low}-{high}"
        return ""


def parse(text: str) -> Selector:
    """Read a name. Raises ``BadSelector``."""
    found = _NAME.fullmatch(text.strip()) if len(text) <= _LENGTH_MAX else None
    if found is None:
        raise BadSelector(f"{text[:100]!r} is not a job")
    some = next((found[name] for name in ("some", "one", "many") if found[name] is not None), None)
    return Selector(found["job"], () if some is None else _indices(some, text), found["role"] or "")


def _indices(text: str, whole: str) -> tuple[tuple[int, int], ...]:
    """The ranges in order, without overlaps."""
    ranges = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise BadSelector(f"{whole[:100]!r} is not a job: {part.strip()[:40]!r} is neither an index nor a range")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise BadSelector(f"{whole[:100]!r} is not a job: the range {part.strip()} is empty")
        ranges.append((low, high))
    ranges.sort()
    joined = [ranges[0]]
    for low, high in ranges[1:]:
        if low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)
