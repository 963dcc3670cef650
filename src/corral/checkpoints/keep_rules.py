"""Which checkpoints of a run are kept: the newest ones, every Nth, the best by a metric.

Pure. Damaged checkpoints are removed once a newer usable one exists; the newest usable one is always kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .run_log import RunState, StoredCheckpoint


@dataclass(frozen=True)
class KeepRules:
    """``last``: the number of newest ones; 0: all. ``every``: also those whose step is a multiple of it; 0: none.
    ``best``: also this many with the lowest value of ``metric``, or the highest if ``highest``."""

    last: int = 0
    every: int = 0
    best: int = 0
    metric: str = ""
    highest: bool = False

    def __post_init__(self) -> None:
        if min(self.last, self.every, self.best) < 0:
            raise ValueError("numbers of checkpoints to keep are not negative")
        if bool(self.best) != bool(self.metric):
            raise ValueError("to keep the best checkpoints, give their number and the metric")


def to_remove(state: RunState, rules: KeepRules) -> dict[int, str]:
    """The numbers of checkpoints that are not kept, with the reason."""
    usable = state.usable()
    if not usable or not rules.last:
        return {}
    kept = {found.number for found in usable[: rules.last]}
    if rules.every:
        kept |= {found.number for found in usable if found.step % rules.every == 0}
    kept |= {found.number for found in _best(usable, rules)}
    why = {found.number: "older than those to keep" for found in usable if found.number not in kept}
    for found in state.checkpoints.values():
        if found.damaged and not found.removed and found.number < usable[0].number:
            why[found.number] = f"damaged: {found.damaged}"
    return why


def _best(usable: list[StoredCheckpoint], rules: KeepRules) -> list[StoredCheckpoint]:
    """Of equal values the newest; a value that is not a number is no value."""
    valued = [found for found in usable if math.isfinite(found.metrics.get(rules.metric, math.nan))]
    sign = -1 if rules.highest else 1
    return sorted(valued, key=lambda found: (sign * found.metrics[rules.metric], -found.number))[: rules.best]
