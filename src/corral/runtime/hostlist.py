"""Lists of nodes in the notation of Slurm: ``n[0-3,7],gpu[01-12]`` and back.

Pure. Bounded: a short text cannot stand for any number of names.
"""

from __future__ import annotations

import re

NAMES_MAX = 65_536
_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBERED = re.compile(r"(.*?)(\d+)")


class BadHostlist(ValueError):
    """The text is not a list of nodes."""


def expand(text: str) -> list[str]:
    """Every name in its order, also if it occurs twice."""
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match.end() == at:
            raise BadHostlist(f"Invalid hostlist: {text}")
        found += _expand_part(match[0], text)
        at = match.end()
        if at < len(text):
            if text[at] != ",":
                raise BadHostlist(f"Invalid hostlist: {text}")
            at += 1
        if len(found) > NAMES_MAX:
            raise BadHostlist(f"Invalid hostlist: more than {NAMES_MAX} names")
    return found


def _expand_part(part: str, text: str) -> list[str]:
    before, opened, rest = part.partition("[")
    if not opened:
        return [part] if part else []
    inside, closed, after = rest.partition("]")
    if not closed:
        raise BadHostlist(f"Invalid hostlist: {text}")
    tails = _expand_part(after, text) or [""]
    found: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise BadHostlist(f"Invalid hostlist: {text}")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low) or int(high) - int(low) > NAMES_MAX or len(found) > NAMES_MAX:
            raise BadHostlist(f"Invalid hostlist: {text}")
        width = len(low)
        found += [f"{before}{n:0{width}d}{tail}" for n in range(int(low), int(high) + 1) for tail in tails]
    return found


def compress(names: list[str]) -> str:
    """Names with a common prefix and consecutive numbers become ranges."""
    groups: dict[tuple[str, int], list[int]] = {}
    order: list[tuple[str, int] | str] = []
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            order.append(name)
            continue
        key = (match[1], len(match[2]) if match[2].startswith("0") and len(match[2]) > 1 else 0)
        if key not in groups:
            order.append(key)
        groups.setdefault(key, []).append(int(match[2]))
    return ",".join(each if isinstance(each, str) else _ranges(*each, sorted(groups[each])) for each in order)


def _ranges(prefix: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    pieces = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in runs]
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return f"{prefix}{pieces[0]}"
    return f"{prefix}[{','.join(pieces)}]"
