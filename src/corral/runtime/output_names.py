"""The names of the files that get the output of tasks: the filename patterns of sbatch, filled in.

Knows jobs, gangs and seats. Values that a user chose cannot lead to another folder: their slashes are replaced.
"""

from __future__ import annotations

import re

from corral.core.model import Gang, Job

#: A %, a width to fill up with zeros, and a letter.
_PATTERN = re.compile(r"%(\d{0,2})([A-Za-z%])")
_WIDTH_MAX = 10  # as in sbatch


def output_name(pattern: str, job: Job, gang: Gang, task: int, rank: int) -> str:
    """The name for one task. ``rank``: of its first process. As in sbatch, a backslash keeps all patterns as they are,
    a width counts only for numbers (``%04j``), and unknown letters stay."""
    if "%" not in pattern:
        return pattern
    if "\\" in pattern:
        return pattern.replace("\\", "")
    values = _values(job, gang, task, rank)

    def fill(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter == "%":
            return "%"
        value = values.get(letter)
        if value is None:
            return found[0]
        return value.zfill(min(int(width or 0), _WIDTH_MAX)) if value.isdecimal() else value.replace("/", "_")

    return _PATTERN.sub(fill, pattern)


def _values(job: Job, gang: Gang, task: int, rank: int) -> dict[str, str]:
    """A task of a gang is a task of the only step of a job, number 0."""
    index = gang.index
    own = job.id if index is None else f"{job.id}_{index}"
    node = gang.seats[task].node
    nodes = list(dict.fromkeys(seat.node for seat in gang.seats))
    return {
        "A": job.id,
        "a": "" if index is None else str(index),
        "b": "" if index is None else str(index % 10),
        "J": f"{own}.0",
        "j": own,
        "N": node.partition(".")[0],
        "n": str(nodes.index(node)),
        "s": "0",
        "t": str(rank),
        "u": job.user,
        "x": job.spec.name or job.id,
    }
