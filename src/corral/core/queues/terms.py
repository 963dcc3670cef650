"""The settings of queues: properties of all queues together, and amounts under scheduled changes.

Knows specifications of queues. Does not know the tree or usage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from corral.core.cluster.resources import GPU_MILLI, SHARE_DIMENSIONS, amount_of
from corral.core.model import NEVER_MS, QueueSpec
from corral.core.queues.budget import begin_of, window_of


class Terms(Struct, frozen=True):
    """Of all queues together."""

    guaranteed: tuple[str, ...]  # shared resources of which some queue has a guarantee
    kept_back: frozenset[str]  # dimensions of which some queue does not lend everything
    has_budgets: bool
    bounds_models: bool


def terms_of(specs: Sequence[QueueSpec]) -> Terms:
    names = [name for each in specs for name, _ in (*each.limit, *each.user_limit, *each.lend)]
    guaranteed = {name for each in specs for name, _ in each.guarantee}
    guaranteed |= {name for each in specs for change in each.changes for name, _ in change.guarantee}
    return Terms(
        tuple([name for name in SHARE_DIMENSIONS if name in guaranteed]),
        frozenset(name for each in specs for name, _ in each.lend),
        any(each.budget is not None for each in specs),
        any(":" in name for name in names),
    )


def changed(stated: int | None, spec: QueueSpec, dimension: str, now_ms: int, is_limit: bool) -> int | None:
    """An amount of a queue, including scheduled changes at this time."""
    for change in spec.changes:
        if change.from_ms <= now_ms < change.until_ms:
            delta = amount_of(change.limit if is_limit else change.guarantee, dimension)
            if delta is not None and not (is_limit and stated is None):
                stated = (stated or 0) + delta
    return stated


def next_change(spec: QueueSpec, now_ms: int) -> int:
    """The next change of the settings of a queue: a scheduled change begins or ends, or a budget window begins."""
    times = [NEVER_MS, *[t for change in spec.changes for t in (change.from_ms, change.until_ms) if t > now_ms]]
    if spec.budget is not None:
        times.append(begin_of(spec.budget, window_of(spec.budget, now_ms) + 1))
    return min(times)


def contested(charge: Mapping[str, int]) -> tuple[str, ...]:
    """The resources in which a guarantee is compared: GPUs for gangs that want GPUs, whatever else is borrowed."""
    return (GPU_MILLI,) if charge.get(GPU_MILLI) else tuple(d for d in charge if d in SHARE_DIMENSIONS)
