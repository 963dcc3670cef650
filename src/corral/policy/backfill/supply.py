"""Free capacity over time: a step function that is searched and reserved from.

Knows times and amounts; does not know nodes, gangs, or why something is reserved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

#: (time, how much more there is from then on)
Change = tuple[int, int]


class Supply:
    """``free[i]`` from ``times[i]`` until the next of the times; the last one forever.

    Equivalent to a number for every millisecond; costs about as much as there are steps.
    """

    __slots__ = ("free", "times")

    def __init__(self, since_ms: int, changes: Iterable[Change]) -> None:
        """``changes`` in any order; past ones count at once."""
        by_time = {since_ms: 0}
        for time, more in changes:
            time = max(time, since_ms)
            by_time[time] = by_time.get(time, 0) + more
        self.times = sorted(by_time)
        self.free = list(accumulate([by_time[time] for time in self.times]))

    def least(self, begin_ms: int, until_ms: int) -> int:
        """What is free during the whole interval."""
        first = max(0, bisect_right(self.times, begin_ms) - 1)
        return min(self.free[first : max(first + 1, bisect_left(self.times, until_ms))])

    def earliest(self, wanted: int, for_ms: int, since_ms: int) -> int | None:
        """The first time from which this amount is free for this duration; None if it never is."""
        times = self.times
        free = self.free
        end = len(times)
        at = max(0, bisect_right(times, since_ms) - 1)
        while at < end:
            if free[at] < wanted:
                at += 1
                continue
            begin = max(times[at], since_ms)
            until = begin + for_ms
            ahead = at + 1
            while ahead < end and times[ahead] < until and free[ahead] >= wanted:
                ahead += 1
            if ahead == end or times[ahead] >= until:
                return begin
            at = ahead + 1
        return None

    def next_step_ms(self, after_ms: int) -> int | None:
        """The first time after another at which the amount changes."""
        at = bisect_right(self.times, after_ms)
        return self.times[at] if at < len(self.times) else None

    def take(self, begin_ms: int, until_ms: int, amount: int) -> None:
        """Reserve an amount in an interval; a negative amount is released."""
        first, last = self._step_at(begin_ms), self._step_at(until_ms)
        self.free[first:last] = [each - amount for each in self.free[first:last]]

    def _step_at(self, time_ms: int) -> int:
        at = bisect_left(self.times, time_ms)
        if at == len(self.times) or self.times[at] != time_ms:
            self.times.insert(at, time_ms)
            self.free.insert(at, self.free[at - 1])
        return at
