"""Lemons: GPUs and nodes on which work fails more often than it should, though nothing else is to be seen.

Pure: from how tasks ended to symptoms. A program that fails by itself says nothing about a machine, and neither does
what one user's programs print. What counts are faults of the infrastructure that the work of several users met here,
users whose work fares well elsewhere; and how often that happens compared with everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from msgspec import Struct

from corral.backends.health.rules import Symptom
from corral.core.model import INFRASTRUCTURE, FailureClass, Health
from corral.wire.health import HealthSettings
from corral.wire.spans import write_span

MACHINE = "(the machine itself)"  # stands for a user where a machine was lost, whoever had work on it
_USERS_MIN = 3
_PER_USER_MAX = 2  # jobs of one user that count: a broken program is often submitted again
_OTHERS_MIN = 10  # with fewer gangs elsewhere there is nothing to compare with
_RATE_MIN = 0.01  # others are taken to fail at least so often: few ends prove little
_CHANCE = 2e-5  # of being so unlucky without being a lemon
#: Ends that say nothing about the machine.
_NOBODYS = frozenset({FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.TIME_LIMIT})


class End(Struct, frozen=True, gc=False):
    """How a task ended, and where: ``units`` are its node and the GPUs it had. ``user``: whose it was, if known."""

    at_ms: int
    gang: str
    units: tuple[str, ...]
    failure: FailureClass | None = None
    user: str = ""

    @property
    def job(self) -> str:
        """An array is one program, and fails as one."""
        return self.gang.partition("/")[0].partition("[")[0]

    @property
    def is_fault(self) -> bool:
        return self.failure in INFRASTRUCTURE


def lemon(unit: str, ends: Sequence[End], since_ms: int, settings: HealthSettings) -> Symptom | None:
    """Whether a node or GPU is one, by all ends of the fleet (or of what is known of it)."""
    if not settings.lemon_failures:
        return None
    counted = [end for end in ends if end.at_ms >= since_ms and end.failure not in _NOBODYS]
    here = [end for end in counted if unit in end.units]
    within = write_span(settings.lemon_window_ms)
    losses = sum(end.user == MACHINE for end in here)
    if losses >= settings.lemon_failures:
        return Symptom("lemon", Health.SUSPECT, f"it was lost {losses} times within {within}")
    suspects = {end.user for end in here if end.is_fault and end.user not in ("", MACHINE)}
    if len(suspects) < _USERS_MIN:
        return None
    elsewhere = [end for end in counted if unit not in end.units and end.user != MACHINE]
    faults = _faults(here, {user for user in suspects if _fares_well(user, elsewhere)})
    failed, tried = sum(min(len(jobs), _PER_USER_MAX) for jobs in faults.values()), len({end.job for end in here})
    others, others_failed = len({end.job for end in elsewhere}), len({end.job for end in elsewhere if end.is_fault})
    if len(faults) < _USERS_MIN or failed < settings.lemon_failures or others < _OTHERS_MIN:
        return None
    if _tail(failed, tried, max(others_failed / others, _RATE_MIN)) >= _CHANCE:
        return None
    why = (
        f"work of {len(faults)} users met faults of the machine here within {within} ({failed} of {tried} jobs; "
        f"{others_failed} of {others} elsewhere), and fares well elsewhere"
    )
    return Symptom("lemon", Health.SUSPECT, why)


def _fares_well(user: str, elsewhere: Sequence[End]) -> bool:
    theirs = [end for end in elsewhere if end.user == user]
    well = sum(end.failure is None for end in theirs)
    return well > 2 * sum(end.is_fault for end in theirs)


def _faults(here: Sequence[End], users: set[str]) -> dict[str, set[str]]:
    """The jobs that met one here, by user."""
    found: dict[str, set[str]] = {}
    for end in here:
        if end.is_fault and end.user in users:
            found.setdefault(end.user, set()).add(end.job)
    return found


def _tail(least: int, tries: int, rate: float) -> float:
    """The chance of so many failures or more, if each fails at this rate."""
    return sum(comb(tries, n) * rate**n * (1 - rate) ** (tries - n) for n in range(least, tries + 1))
