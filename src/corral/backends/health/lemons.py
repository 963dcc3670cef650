"""Lemons: GPUs and nodes on which work fails more often than it should, though nothing else is to be seen.

Pure: from how tasks ended to symptoms. A program that fails by itself says nothing about a machine, neither against it
nor for it, and neither does what one user's programs print. What counts are faults of the infrastructure that the work
of several users met here, users whose work fares well elsewhere.

The test is sequential (CUSUM): each job adds the logarithm of how much likelier its end is on a lemon than on a healthy
machine, given how often the same user's work meets faults elsewhere; the sum starts over at zero where it would be
negative, so that what a machine did before it went bad does not speak for it. A sum of log(N) is reached on a healthy
machine less often than once in N jobs, however often one looks. What is the same program fails alike elsewhere, and
does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log

from msgspec import Struct

from corral.backends.health.rules import Symptom
from corral.core.model import INFRASTRUCTURE, FailureClass, Health
from corral.wire.health import HealthSettings
from corral.wire.spans import write_span

MACHINE = "(the machine itself)"  # stands for a user where a machine was lost, whoever had work on it
_USERS_MIN = 3
_PER_USER_MAX = 2  # jobs of one user that count: a broken program is often submitted again
_OTHERS_MIN = 10  # with fewer gangs elsewhere there is nothing to compare with
_RATE_MIN = 0.005  # work is taken to meet faults at least this often
_FLEET_PRIOR = (1, 100)  # faults and jobs that are taken to have been seen elsewhere: few ends prove little
_USER_PRIOR = 20  # jobs of a user that are taken to have fared as all others did
_RATES = (0.2, 0.45, 0.8)  # of jobs that a lemon spoils: mild, middling, severe
_EVIDENCE_MIN = log(4_000_000)  # a healthy machine is condemned less often than once in this many jobs


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

    @property
    def counts(self) -> bool:
        """What was cancelled or failed by itself says nothing about the machine."""
        return self.failure is None or self.failure in INFRASTRUCTURE


class Tally:
    """How many jobs of each user there were, and how many of them met a fault, in the ends that are known."""

    def __init__(self, ends: Iterable[End] = ()) -> None:
        self.jobs, self.faulty = Counter[str](), Counter[str]()  # by user
        self._ends, self.faults = Counter[str](), Counter[str]()  # by job
        for end in ends:
            self.add(end)

    def add(self, end: End) -> None:
        if end.counts and end.user != MACHINE:
            self._ends[end.job] += 1
            self.jobs[end.user] += self._ends[end.job] == 1
            if end.is_fault:
                self.faults[end.job] += 1
                self.faulty[end.user] += self.faults[end.job] == 1

    def remove(self, end: End) -> None:
        if end.counts and end.user != MACHINE:
            _less(self._ends, end.job, self.jobs, end.user)
            if end.is_fault:
                _less(self.faults, end.job, self.faulty, end.user)


def _less(by_job: Counter[str], job: str, by_user: Counter[str], user: str) -> None:
    by_job[job] -= 1
    if not by_job[job]:
        del by_job[job]
        by_user[user] -= 1
        if not by_user[user]:
            del by_user[user]


def lemon(
    unit: str, ends: Sequence[End], since_ms: int, settings: HealthSettings, tally: Tally | None = None
) -> Symptom | None:
    """Whether a node or GPU is one. ``tally``: of all ends, where these are only the ones of this unit."""
    if not settings.lemon_failures:
        return None
    here = [end for end in ends if end.at_ms >= since_ms and unit in end.units and end.counts]
    within = write_span(settings.lemon_window_ms)
    losses = sum(end.user == MACHINE for end in here)
    if losses >= settings.lemon_failures:
        return Symptom("lemon", Health.SUSPECT, f"it was lost {losses} times within {within}")
    elsewhere = _Elsewhere(tally or Tally(end for end in ends if end.at_ms >= since_ms), here)
    tried = _by_job(here)
    faults = _faults(tried, elsewhere)
    failed, users = len(faults), len({end.user for end in faults})
    if users < _USERS_MIN or failed < settings.lemon_failures or elsewhere.jobs < _OTHERS_MIN:
        return None
    counting = {end.job for end in faults}
    counted = [end for end in tried if not end.is_fault or end.job in counting]
    if max(_evidence(counted, rate, elsewhere) for rate in _RATES) < _EVIDENCE_MIN:
        return None
    why = (
        f"work of {users} users met faults of the machine here within {within} ({failed} of {len(tried)} jobs; "
        f"{elsewhere.faulty} of {elsewhere.jobs} elsewhere), and fares well elsewhere"
    )
    return Symptom("lemon", Health.SUSPECT, why)


class _Elsewhere:
    """How work fares that was not here."""

    def __init__(self, tally: Tally, here: Sequence[End]) -> None:
        self._tally, self._here = tally, Tally(here)
        self.jobs = tally.jobs.total() - self._here.jobs.total()
        self.faulty = tally.faulty.total() - self._here.faulty.total()
        faults, jobs = _FLEET_PRIOR
        self._rate = (self.faulty + faults) / (self.jobs + jobs)

    def of(self, user: str) -> tuple[int, int]:
        """How many jobs, and how many of them met a fault."""
        all_jobs, here = self._tally, self._here
        return all_jobs.jobs[user] - here.jobs[user], all_jobs.faulty[user] - here.faulty[user]

    def fares_well(self, user: str) -> bool:
        jobs, faulty = self.of(user)
        return jobs > 3 * faulty

    def met(self, job: str) -> bool:
        """Whether the same program met faults elsewhere as well."""
        return self._tally.faults[job] > self._here.faults[job]

    def rate(self, user: str) -> float:
        """How often a job of this user meets a fault."""
        jobs, faulty = self.of(user)
        return max((faulty + _USER_PRIOR * self._rate) / (jobs + _USER_PRIOR), _RATE_MIN)


def _by_job(here: Sequence[End]) -> list[End]:
    """One end of each job, in the order of time: its first fault, if it met one."""
    found: dict[str, End] = {}
    for end in sorted(here, key=lambda end: end.at_ms):
        if end.job not in found or (end.is_fault and not found[end.job].is_fault):
            found[end.job] = end
    return sorted(found.values(), key=lambda end: end.at_ms)


def _faults(tried: Sequence[End], elsewhere: _Elsewhere) -> list[End]:
    """The faults that count."""
    found: list[End] = []
    of_user = Counter[str]()
    for end in tried:
        if not end.is_fault or end.user in ("", MACHINE):
            continue
        if elsewhere.fares_well(end.user) and not elsewhere.met(end.job):
            of_user[end.user] += 1
            found += [end] if of_user[end.user] <= _PER_USER_MAX else []
    return found


def _evidence(tried: Sequence[End], rate: float, elsewhere: _Elsewhere) -> float:
    """The most that ever spoke for a lemon that spoils work at this rate."""
    most = now = 0.0
    for end in tried:
        usual = elsewhere.rate(end.user)
        now = max(0.0, now + (log(rate / usual) if end.is_fault else log((1 - rate) / (1 - usual))))
        most = max(most, now)
    return most
