"""How a job of Slurm ended, in words. Knows the states that jobs end in; nothing is asked of Slurm here."""

from __future__ import annotations

import pwd
from contextlib import suppress

from corral.backends.carriers.slurm.commands import JobRecord

_LOG = "its words are in pilot.log in its folder on the node"
_TOLD = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "PREEMPTED": "was preempted",
    "NODE_FAIL": "lost its node",
    "COMPLETED": "has ended",
    "FAILED": f"failed; {_LOG}",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "got a node that did not boot",
    "DEADLINE": "reached its deadline",
}

ENDED = frozenset(_TOLD)


def told_end(job: int, state: str) -> str:
    return f"job {job} {_TOLD.get(state, f'is {state.lower()}')}"


def told_record(record: JobRecord) -> str:
    """As much as the accounts say: also by whom, and with what exit code."""
    if record.state == "CANCELLED" and record.by is not None:
        return f"{told_end(record.id, record.state)} by {_user(record.by)}"
    if record.state == "FAILED" and record.signal:
        return f"job {record.id} was killed by signal {record.signal}; {_LOG}"
    if record.state == "FAILED":
        return f"job {record.id} failed with exit code {record.exit_code}; {_LOG}"
    return told_end(record.id, record.state)


def _user(number: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return f"user {number}"
