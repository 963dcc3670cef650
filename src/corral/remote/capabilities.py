"""Why no node of a cluster can run some work, by what each of them lacks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.work import Work
from corral.remote.node_session import NodeSession
from corral.runtime.base import ACCOUNTLESS
from corral.runtime.container.orders import refusal
from corral.runtime.container.settings import ContainerSettings

_NAMED_MAX = 3


def why_not_as(account: str, members: Sequence[NodeSession]) -> str:
    """Why some nodes refuse work of this account. Each node checks by itself whether it has the account."""
    strict = [] if account else [each for each in members if ACCOUNTLESS in each.lacks]
    return f"node {strict[0].name} refuses these tasks: {strict[0].lacks[ACCOUNTLESS]}" if strict else ""


def why_nowhere(work: Work, members: Sequence[NodeSession]) -> str:
    """Why none of these nodes can run the work. Empty: one can, or there is no node yet."""
    wrong = refusal(work.image, work.mounts, ContainerSettings())
    if wrong or not work.image or not members or not all("images" in each.lacks for each in members):
        return wrong
    named = "; ".join(f"{each.name}: {each.lacks['images']}" for each in members[:_NAMED_MAX])
    more = f"; and {len(members) - _NAMED_MAX} more" if len(members) > _NAMED_MAX else ""
    return f"the job needs an image, and no node can run one ({named}{more})"
