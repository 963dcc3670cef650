"""When the next save is due: after a number of steps on which all ranks agree.

Knows a clock and the advice, no torch. Ranks must not decide by their own clocks: one would save while the others train
on, and both would wait for ever. So rank 0 turns the interval into a step, at steps that all ranks know in advance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .interval import best_interval_s, mtbf_of_nodes_s
from .job_environment import number

_FIRST_STEPS = 5  # timed before the first interval is turned into steps; the very first step is not typical
_LEAST_STALL_S = 0.01


class SaveSchedule:
    """``interval``: in seconds, ``auto``, or None: as the job says (``CORRAL_CHECKPOINT_INTERVAL``), else ``auto``.
    ``share``: gives every rank the value of rank 0."""

    def __init__(
        self,
        interval: float | str | None,
        share: Callable[[Any], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stated = _stated_s(interval)
        self._share = share
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self._step_s = 0.0
        self._stall_s = 0.0
        self._write_s = 0.0
        self._due: int | None = None
        self._plan_at: int | None = None

    @property
    def interval_s(self) -> float:
        """The interval that is in force, in this rank."""
        if self._stated is not None:
            return self._stated
        nodes = int(number("GROUP_WORLD_SIZE", 1))
        mtbf_s = number("CORRAL_MTBF_S", mtbf_of_nodes_s(nodes))
        return best_interval_s(max(self._stall_s, _LEAST_STALL_S), self._write_s, mtbf_s)

    def begin(self, step: int) -> None:
        self._first = None
        self._due = None
        self._plan_at = step + 1 + _FIRST_STEPS

    def saved(self, step: int, stall_s: float, write_s: float) -> None:
        """Every rank calls it at the same step. The first save allocates memory, so later ones tell more."""
        self._stall_s = stall_s if not self._write_s else (self._stall_s + stall_s) / 2
        self._write_s = write_s
        self._first = None
        self._due = None
        self._plan_at = step + 1 + _FIRST_STEPS

    def is_due(self, step: int) -> bool:
        now = self._clock()
        if self._plan_at is None:
            self.begin(step)
        if self._first is None:
            self._first = (step, now)
        if self._due is None and step == self._plan_at:
            began, at = self._first
            self._step_s = (now - at) / max(step - began, 1)
            left = (self.interval_s - (now - at)) / max(self._step_s, 1e-6)
            self._due = step + max(0, self._share(round(left)))
        return self._due is not None and step >= self._due


def _stated_s(interval: float | str | None) -> float | None:
    """Seconds; None: auto."""
    if interval is None:
        given = number("CORRAL_CHECKPOINT_INTERVAL", 0.0)
        return given if given > 0 else None
    if isinstance(interval, str):
        if interval != "auto":
            raise ValueError(f"interval is a number of seconds or 'auto', not {interval!r}")
        return None
    if interval <= 0:
        raise ValueError("interval is more than 0 seconds")
    return float(interval)
