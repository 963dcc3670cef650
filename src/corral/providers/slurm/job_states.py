"""How a Slurm job ended, in words. Knows the final states of jobs; calls nothing."""

from __future__ import annotations

import pwd
from contextlib import suppress

from corral.providers.slurm.slurm_commands import SlurmJobRecord

_LOG = "see pilot.log in its directory on the node"
_TEXTS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "PREEMPTED": "was preempted",
    "NODE_FAIL": "lost its node",
    "COMPLETED": "completed",
    "FAILED": f"failed; {_LOG}",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "failed because its node did not boot",
    "DEADLINE": "reached its deadline",
}

ENDED = frozenset(_TEXTS)


def describe_end(job: int, state: str) -> str:
    return f"job {job} {_TEXTS.get(state, f'is {state.lower()}')}"


def describe_record(record: SlurmJobRecord) -> str:
    """As much as the accounting says: also by which user, and with which exit code."""
    if record.state == "CANCELLED" and record.by is not None:
        return f"{describe_end(record.id, record.state)} by {_user(record.by)}"
    if record.state == "FAILED" and record.signal:
        return f"job {record.id} was killed by signal {record.signal}; {_LOG}"
    if record.state == "FAILED":
        return f"job {record.id} failed with exit code {record.exit_code}; {_LOG}"
    return describe_end(record.id, record.state)


def _user(number: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return f"user {number}"
