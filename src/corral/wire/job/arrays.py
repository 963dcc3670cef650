"""Indices of array jobs in the grammar of sbatch: ``0-99``, ``1,3,5-9:2``, ``0-99%10`` for ten at a time.

Knows texts; the engine handles the elements.
"""

from __future__ import annotations

import re

from corral.core.intake.refusal import Refusal

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_HINT = "write it like 0-99, 1,3,5-9:2 or 0-99%10 (ten at once)"


def parse_array(text: str, most: int) -> tuple[tuple[int, ...], int | None] | Refusal:
    """The indices in the order written, and how many may run at once. At most ``most`` of them, counted first."""
    if len(text) > 16 * most + 64:
        return Refusal("array_too_large", f"an array of more than {most} elements", "split it into several jobs")
    body, percent, parallel_text = text.strip().partition("%")
    parallel = None
    if percent:
        if not re.fullmatch(r"\d{1,9}", parallel_text, re.ASCII) or not int(parallel_text):
            return Refusal("bad_array", f"{parallel_text[:40]!r} is not a number of elements to run at once", _HINT)
        parallel = int(parallel_text)
    indices: list[int] = []
    for part in body.split(","):
        found = _part(part.strip())
        if isinstance(found, Refusal):
            return found
        if len(indices) + len(found) > most:
            return Refusal("array_too_large", f"an array of more than {most} elements", "split it into several jobs")
        indices += found
    if len(set(indices)) != len(indices):
        return Refusal("bad_array", "an index occurs twice", "name every index once")
    return tuple(indices), parallel


def _part(text: str) -> range | Refusal:
    match = _PART.fullmatch(text)
    if match is None:
        return Refusal("bad_array", f"{text[:40]!r} is neither an index nor a range of indices", _HINT)
    first = int(match[1])
    last, step = int(match[2] or first), int(match[3] or 1)
    if last < first or step < 1:
        return Refusal("bad_array", f"the range {text[:40]} is empty", "put the smaller index first, step at least 1")
    return range(first, last + 1, step)


def write_array(indices: tuple[int, ...], parallel: int | None) -> str:
    """The same indices in the same order, with runs of equal steps as ranges."""
    parts, at = [], 0
    while at < len(indices):
        end = _run_end(indices, at)
        if end - at >= 3:
            step = indices[at + 1] - indices[at]
            parts.append(f"{indices[at]}-{indices[end - 1]}" + (f":{step}" if step != 1 else ""))
        else:
            end = at + 1
            parts.append(str(indices[at]))
        at = end
    return ",".join(parts) + (f"%{parallel}" if parallel is not None else "")


def _run_end(indices: tuple[int, ...], at: int) -> int:
    """Where the run of equal positive steps that begins here ends."""
    end = at + 1
    step = indices[end] - indices[at] if end < len(indices) else 0
    while step > 0 and end < len(indices) and indices[end] - indices[end - 1] == step:
        end += 1
    return end
