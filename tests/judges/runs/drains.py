"""Whether nodes that were to become empty did so within the grace of those who sat there, and nobody came."""

from __future__ import annotations

from corral.core import events as e
from corral.core.model import Health
from tests.judges.runs.lives import lives
from tests.judges.runs.site import Run, since


def judge_drains(run: Run, stop_ms: int = 0) -> list[str]:
    """``stop_ms``: after the end of its grace a gang may need so much longer to be gone."""
    known, found = lives(run), []
    for node, begin_ms, end_ms in _drained(run):
        for life in known.values():
            for stay in life.stays:
                if not any(seat.node == node for seat in stay.seats):
                    continue
                until_ms = begin_ms + life.spec.grace_ms + stop_ms
                ended_ms = run.end_ms if stay.ended_ms is None else stay.ended_ms
                if stay.placed_ms < begin_ms and until_ms < min(ended_ms, end_ms):
                    found.append(f"{life.gang} was still on {node} after {since(until_ms)} ms, which is drained")
                if begin_ms < stay.placed_ms < end_ms:
                    found.append(f"{life.gang} was placed on {node} at {since(stay.placed_ms)} ms, which is drained")
    return found


def _drained(run: Run) -> list[tuple[str, int, int]]:
    """Node, from when and until when it was to be empty."""
    found, since_ms = list[tuple[str, int, int]](), dict[str, int]()
    for event in run.events:
        if isinstance(event, e.NodeHealthChanged):
            if event.health is Health.DRAINING:
                since_ms.setdefault(event.node, event.at_ms)
            elif event.node in since_ms:
                found.append((event.node, since_ms.pop(event.node), event.at_ms))
    return found + [(node, begin_ms, run.end_ms) for node, begin_ms in since_ms.items()]
