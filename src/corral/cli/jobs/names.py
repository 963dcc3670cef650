"""Names of jobs on the command line: ``35``, ``35[7]``, ``35/trainer``; read by ``wire.api.selector``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.cli.errors import Complaint

if TYPE_CHECKING:
    from corral.wire.api.selector import Selector

ALIVE = ("waiting", "starting", "running", "stopping")
OVER = ("succeeded", "failed", "cancelled")
#: States as Slurm, Kubernetes and others name them.
SAME_STATES = {
    "pending": "waiting", "queued": "waiting", "pd": "waiting", "r": "running", "completing": "stopping",
    "cg": "stopping", "completed": "succeeded", "cd": "succeeded", "done": "succeeded", "f": "failed",
    "ca": "cancelled", "canceled": "cancelled",
}  # fmt: skip


def selector_of(job: str) -> Selector:
    from corral.wire.api.selector import BadSelector, parse

    try:
        return parse(job)
    except BadSelector as wrong:
        raise Complaint(str(wrong), f"{wrong.hint}; corral ps lists your jobs") from None


def job_name(job: str) -> str:
    """The name as the API takes it."""
    return str(selector_of(job))
