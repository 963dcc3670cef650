"""What no machine of a fleet can run: by what each of them lacks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from corral.backends.base import ACCOUNTLESS
from corral.backends.container.orders import refusal
from corral.backends.container.settings import ContainerSettings
from corral.backends.fleet.member import Member
from corral.core.work import Work

_NAMED_MAX = 3


def why_not_as(account: str, members: Sequence[Member]) -> str:
    """Why work cannot run as this account wherever it is placed. Which accounts machines have, they see themselves."""
    strict = [] if account else [each for each in members if ACCOUNTLESS in each.lacks]
    return f"node {strict[0].name} refuses such tasks: {strict[0].lacks[ACCOUNTLESS]}" if strict else ""


def why_nowhere(work: Work, members: Sequence[Member]) -> str:
    """Why work can run on none of these machines; empty: it can on one of them, or there is none yet."""
    wrong = refusal(work.image, work.mounts, ContainerSettings())
    if wrong or not work.image or not members or not all("images" in each.lacks for each in members):
        return wrong
    named = "; ".join(f"{each.name}: {each.lacks['images']}" for each in members[:_NAMED_MAX])
    more = f"; and {len(members) - _NAMED_MAX} more" if len(members) > _NAMED_MAX else ""
    return f"the job has an image, and no machine can run one ({named}{more})"
