"""Rate limit of tokens: a bucket that fills at a steady rate and holds a burst.

Knows numbers and times, nothing about requests.
"""

from __future__ import annotations

from collections import OrderedDict

_KEPT = 10_000


class Buckets:
    """One bucket for each key. A bucket unused for a long time is full, so dropping it changes nothing."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s, self.burst = per_s, float(burst)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> (left, when)

    def take(self, key: str, now_s: float, cost: float = 1.0) -> float:
        """0 if the request may go on; otherwise the seconds until the next try."""
        left, when = self._left.get(key, (self.burst, now_s))
        left = min(self.burst, left + (now_s - when) * self.per_s)
        wait_s = 0.0 if left >= cost else (cost - left) / self.per_s
        self._left[key] = (left - cost if left >= cost else left, now_s)
        self._left.move_to_end(key)
        if len(self._left) > _KEPT:
            self._left.popitem(last=False)
        return wait_s
