"""The id of a gang: ``17/main``, or ``17[3]/main`` for element 3 of an array. No other module composes or parses it."""

from __future__ import annotations

MAIN = "main"  # the role of the only gang of a job


def gang_id(job: str, role: str, index: int | None) -> str:
    return f"{job}/{role}" if index is None else f"{job}[{index}]/{role}"


def job_of(gang: str) -> str:
    """``17`` for ``17/main`` and for ``17[3]/main``."""
    return element_of(gang).partition("[")[0]


def element_of(gang: str) -> str:
    """The job, or the element of an array: ``17``, ``17[3]``."""
    return gang.rpartition("/")[0] or gang


def short_name(gang: str) -> str:
    """For people: without the role if it is the only one."""
    return gang.removesuffix(f"/{MAIN}")


def role_of(gang: str) -> str:
    return gang.rpartition("/")[2]


def index_of(gang: str) -> int | None:
    """The index of the array element; None for a job that is not an array."""
    index = element_of(gang).partition("[")[2]
    return int(index[:-1]) if index else None
