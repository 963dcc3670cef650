"""Names of jobs on the command line: ``35``, ``35[7]``, ``35/trainer``; read by ``wire.api.selector``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.cli.errors import Complaint

if TYPE_CHECKING:
    from corral.wire.api.selector import Selector


def selector_of(job: str) -> Selector:
    from corral.wire.api.selector import BadSelector, parse

    try:
        return parse(job)
    except BadSelector as wrong:
        raise Complaint(str(wrong), f"{wrong.hint}; corral ps lists your jobs") from None


def job_name(job: str) -> str:
    """The name as the API takes it."""
    return str(selector_of(job))
