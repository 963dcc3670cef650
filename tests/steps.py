"""How much work something is, counted and not timed: the lines of Corral that are executed on the way.

The same on every machine and under any load, so that a test can say that twice as much work takes twice as many steps.
What happens inside C (searching a list, say) is not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Counted:
    lines = 0


@contextmanager
def tracing(*modules: str) -> Iterator[Counted]:
    """Counts the lines that are executed meanwhile, in modules whose names begin so."""
    counted = Counted()

    def local(frame: FrameType, what: str, about: Any) -> Any:
        counted.lines += what == "line"
        return local

    def enter(frame: FrameType, what: str, about: Any) -> Any:
        return local if frame.f_globals.get("__name__", "").startswith(modules) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield counted
    finally:
        sys.settrace(before)


def steps(call: Callable[[], object]) -> int:
    """The lines that are executed while this is called, in modules of corral."""
    with tracing("corral.") as counted:
        call()
    return counted.lines


def growth(measure: Callable[[int], int], size: int) -> float:
    """How many times the steps of one size those of twice the size are: 2 where the work is linear, 4 where it is
    quadratic."""
    return measure(2 * size) / measure(size)
