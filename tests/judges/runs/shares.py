"""Whether queues with endless work were served as they are entitled to, over a whole run.

Entitled: at each level what the parent is entitled to, divided by weight, but nobody who is guaranteed more gets less
than its guarantee. Counts GPU time held, from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.core.cluster.resources import GPU_MILLI, amount_of
from corral.core.model import QueueSpec
from tests.judges.runs.lives import lives
from tests.judges.runs.site import DAY, START_MS, Run

POINTS = 0.03


def judge_shares(run: Run, begin_ms: int = 0, end_ms: int = DAY, points: float = POINTS) -> list[str]:
    """What was served otherwise than within so much of the entitlement, between two times since the start."""
    had, entitled = served(run, begin_ms, end_ms), entitlements(run.site.queues, run.site.gpus)
    return [
        f"{name} is entitled to {entitled[name]:.1%} and had {had.get(name, 0.0):.1%}"
        for name in entitled
        if abs(had.get(name, 0.0) - entitled[name]) > points
    ]


def served(run: Run, begin_ms: int, end_ms: int) -> dict[str, float]:
    """The part that every queue, with those below it, had of all that was served in a period. GPUs that nobody could
    use, because they were too few for whoever was next, are nobody's."""
    held: dict[str, int] = {}
    for life in lives(run).values():
        service = sum(stay.gpus * stay.held_ms(START_MS + begin_ms, START_MS + end_ms) for stay in life.stays)
        parts = life.queue.split("/")
        for depth in range(len(parts) + 1):
            name = "/".join(parts[:depth])
            held[name] = held.get(name, 0) + service
    whole = max(1, held.pop("", 0))
    return {name: service / whole for name, service in held.items()}


def entitlements(queues: Sequence[QueueSpec], gpus: int) -> dict[str, float]:
    """By queue, as a part of the cluster. Every queue without queues below it has endless work."""
    found: dict[str, float] = {}
    _divide("", 1.0, gpus, {each.name: each for each in queues}, found)
    return found


def _divide(parent: str, part: float, gpus: int, specs: Mapping[str, QueueSpec], found: dict[str, float]) -> None:
    below = [name for name in specs if name.rpartition("/")[0] == parent]
    promised = {name: _promised(name, specs) / 1000 / gpus for name in below}
    bound, left = dict.fromkeys(below, 0.0), list(below)
    rest = part
    while left:  # who is guaranteed more than its weight gives is served first, the others divide the rest
        weights = sum(specs[name].weight for name in left)
        more = [name for name in left if promised[name] > rest * specs[name].weight / weights]
        for name in more or left:
            bound[name] = promised[name] if more else rest * specs[name].weight / weights
        if not more:
            break
        rest -= sum(bound[name] for name in more)
        left = [name for name in left if name not in more]
    for name in below:
        found[name] = bound[name]
        _divide(name, bound[name], gpus, specs, found)


def _promised(name: str, specs: Mapping[str, QueueSpec]) -> int:
    """What a queue is guaranteed: what it states, or what is stated below it."""
    stated = amount_of(specs[name].guarantee, GPU_MILLI)
    if stated is not None:
        return stated
    return sum(_promised(each, specs) for each in specs if each.rpartition("/")[0] == name)
