"""Budgets: GPU time by the window. A run is charged to each window that it touches, for its part of it.

Pure arithmetic on times. Does not know the tree of queues, or gangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from corral.core.model import Budget

WINDOWS_MAX = 1_000  # windows of one run that are considered


class Run(Struct, frozen=True, gc=False):
    """A number of GPUs, in thousandths, from one time to another."""

    begin_ms: int
    end_ms: int
    gpu_milli: int

    def gpu_ms(self, begin_ms: int, end_ms: int) -> int:
        """The part of it in an interval."""
        return self.gpu_milli * max(0, min(end_ms, self.end_ms) - max(begin_ms, self.begin_ms)) // 1000


def window_of(budget: Budget, at_ms: int) -> int:
    return (at_ms - budget.anchor_ms) // budget.window_ms


def begin_of(budget: Budget, window: int) -> int:
    return budget.anchor_ms + window * budget.window_ms


def parts(budget: Budget, asked: Run, runs: Iterable[Run], spent_gpu_ms: int) -> Iterator[tuple[int, int]]:
    """Of each window that a run touches, from the one in which it begins: what is spent or committed, and its part.
    ``spent_gpu_ms``: by ended runs, in the first of these windows."""
    first = window_of(budget, asked.begin_ms)
    last = window_of(budget, max(asked.begin_ms, asked.end_ms - 1))
    known = list(runs)
    for window in range(first, min(last, first + WINDOWS_MAX) + 1):
        begin, end = begin_of(budget, window), begin_of(budget, window + 1)
        taken = sum([run.gpu_ms(begin, end) for run in known])
        yield taken + (spent_gpu_ms if window == first else 0), asked.gpu_ms(begin, end)


def most_in_a_window(budget: Budget, gpu_milli: int, length_ms: int) -> int:
    """The most that a run uses of one window, if it begins with the window."""
    return gpu_milli * min(length_ms, budget.window_ms) // 1000
