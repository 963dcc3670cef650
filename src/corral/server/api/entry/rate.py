"""How often a token may ask: a bucket that fills at a steady rate and holds a burst.

Knows numbers and times, nothing of requests.
"""

from __future__ import annotations

from collections import OrderedDict

_KEPT = 10_000


class Buckets:
    """One bucket for each key. A bucket that nobody has used for long is full, so forgetting it changes nothing."""

    def __init__(self, per_s: float, burst: int) -> None:
        self.per_s, self.burst = per_s, float(burst)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> (left, when)

    def take(self, key: str, now_s: float, cost: float = 1.0) -> float:
        """0 if it may go on; otherwise after how many seconds it may try again."""
        left, when = self._left.get(key, (self.burst, now_s))
        left = min(self.burst, left + (now_s - when) * self.per_s)
        wait_s = 0.0 if left >= cost else (cost - left) / self.per_s
        self._left[key] = (left - cost if left >= cost else left, now_s)
        self._left.move_to_end(key)
        if len(self._left) > _KEPT:
            self._left.popitem(last=False)
        return wait_s
