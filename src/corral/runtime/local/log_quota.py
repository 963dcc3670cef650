"""Which stored logs to delete when there are too many: the oldest of each user who has more than a fair share.

One round counts all logs by user and age. After it the deletions are decided, and the next round executes them. Ages
are counted in steps of a fifth, so that millions of logs need no memory. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from msgspec import Struct

_STEPS = 4  # to a doubling of the age


class LogExcess(Struct):
    """What a user loses in the next round: all that is older than ``always_s``, and ``some_bytes`` of what is older
    than ``some_s``."""

    always_s: float
    some_s: float
    some_bytes: int

    def takes(self, age_s: float, size: int) -> bool:
        if age_s >= self.always_s:
            return True
        if age_s < self.some_s or self.some_bytes <= 0:
            return False
        self.some_bytes -= size
        return True


class Round:
    """The logs that were seen in this round and stay."""

    def __init__(self) -> None:
        self._over: dict[str, dict[int, int]] = {}  # by user: bytes by step of age, of tasks that have ended
        self._live: dict[str, dict[str, int]] = {}  # by user: bytes by task, of running tasks

    def count(self, user: str, age_s: float, size: int) -> None:
        steps = self._over.setdefault(user, {})
        step = _step(age_s)
        steps[step] = steps.get(step, 0) + size

    def count_live(self, user: str, name: str, size: int) -> None:
        self._live.setdefault(user, {})[name] = size

    def decide(self, bytes_max: int, user_bytes_max: int) -> tuple[dict[str, LogExcess], dict[str, int]]:
        """What users lose of the logs of ended tasks; and how much each running task may keep, if their logs alone are
        too large. ``user_bytes_max`` 0: only the total is limited."""
        users = self._over.keys() | self._live.keys()
        live = {user: sum(self._live.get(user, {}).values()) for user in users}
        totals = {user: sum(self._over.get(user, {}).values()) + live[user] for user in users}
        share = fair_share(totals.values(), bytes_max)
        most = min(share, user_bytes_max) if user_bytes_max else share
        excess: dict[str, LogExcess] = {}
        limits: dict[str, int] = {}
        for user, total in totals.items():
            if total > most:
                excess[user] = _excess(self._over.get(user, {}), max(most - live[user], 0))
            if live[user] > most:
                limits |= dict.fromkeys(self._live[user], most // len(self._live[user]))
        return excess, limits


def fair_share(sizes: Collection[int], total: int) -> int:
    """The most that each may keep so that all together keep at most ``total``. Those that keep less leave more for the
    others."""
    left = total
    for count, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size * count > left:
            return left // count
        left -= size
    return total


def _excess(steps: dict[int, int], most: int) -> LogExcess:
    """The newest stay as long as they fit."""
    for step in sorted(steps):
        if steps[step] > most:
            return LogExcess(_age_s(step + 1), _age_s(step), steps[step] - most)
        most -= steps[step]
    return LogExcess(math.inf, math.inf, 0)


def _step(age_s: float) -> int:
    return int(_STEPS * math.log2(1 + max(age_s, 0)))


def _age_s(step: int) -> float:
    return float(2 ** (step / _STEPS) - 1)
