"""Lemons: GPUs and nodes on which work fails more often than it should, though nothing else is to be seen.

Pure: from how tasks ended to symptoms. Only failures of different gangs count, so that one broken program does not
condemn a machine. Faults of the infrastructure count by their number; all failures count against the rate of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from msgspec import Struct

from corral.backends.health.rules import Symptom
from corral.core.model import INFRASTRUCTURE, FailureClass, Health
from corral.wire.health import HealthSettings
from corral.wire.spans import write_span

_OTHERS_MIN = 10  # with fewer gangs elsewhere there is nothing to compare with
_RATE_MIN = 0.05  # others are taken to fail at least so often: few ends prove little
_CHANCE = 0.001  # of being so unlucky without being a lemon
#: Ends that say nothing about the machine.
_NOBODYS = frozenset({FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.TIME_LIMIT})


class End(Struct, frozen=True, gc=False):
    """How a task ended, and where: ``units`` are its node and the GPUs it had."""

    at_ms: int
    gang: str
    units: tuple[str, ...]
    failure: FailureClass | None = None


def lemon(unit: str, ends: Sequence[End], since_ms: int, settings: HealthSettings) -> Symptom | None:
    """Whether a node or GPU is one, by all ends of the fleet (or of what is known of it)."""
    if not settings.lemon_failures:
        return None
    counted = [end for end in ends if end.at_ms >= since_ms and end.failure not in _NOBODYS]
    here = [end for end in counted if unit in end.units]
    faults = {end.gang for end in here if end.failure in INFRASTRUCTURE}
    within = write_span(settings.lemon_window_ms)
    if len(faults) >= settings.lemon_failures:
        why = f"tasks of {len(faults)} different gangs met faults of the machine here within {within}"
        return Symptom("lemon", Health.SUSPECT, why)
    failed, tried = _failed(here), len({end.gang for end in here})
    if failed < settings.lemon_failures:
        return None
    elsewhere = [end for end in counted if unit not in end.units]
    others, others_failed = len({end.gang for end in elsewhere}), _failed(elsewhere)
    if others < _OTHERS_MIN:
        return None  # programs fail where they are run
    rate = max(others_failed / others, _RATE_MIN)
    if _tail(failed, tried, rate) >= _CHANCE:
        return None
    why = f"{failed} of {tried} gangs failed here within {within}, and {others_failed} of {others} elsewhere"
    return Symptom("lemon", Health.SUSPECT, why)


def _failed(ends: Sequence[End]) -> int:
    return len({end.gang for end in ends if end.failure is not None})


def _tail(least: int, tries: int, rate: float) -> float:
    """The chance of so many failures or more, if each fails at this rate."""
    return sum(comb(tries, n) * rate**n * (1 - rate) ** (tries - n) for n in range(least, tries + 1))
