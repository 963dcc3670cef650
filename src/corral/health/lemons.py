"""Lemons: GPUs and nodes on which jobs fail more often than they should, without any other symptom.

Pure: from how tasks ended to symptoms. A program that fails by itself says nothing about a machine, neither for nor
against it, and neither does the output of one user's programs. What counts are infrastructure faults that hit the jobs
of several users here, users whose jobs run well elsewhere.

Each job multiplies the odds that the machine is a lemon by how much likelier its end is on a lemon than on a healthy
machine. How likely a fault is there is estimated from other machines: how often jobs of the same user hit one; or, once
the same job has run well elsewhere, how often that happens (rarer: a broken program fails again); or, in an hour in
which all jobs hit faults far more often than usual, how often they do then. The odds are summed over all jobs at which
the machine may have gone bad (Shiryaev and Roberts): what it did before does not count for it, and a healthy machine
reaches a sum of N less often than once in N jobs. A job that fails in the same way elsewhere does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from corral.core.gang_id import job_of
from corral.core.model import INFRASTRUCTURE, FailureClass, Health
from corral.duration_text import span
from corral.health.rules import Symptom
from corral.wire.health import HOUR_MS, HealthSettings

MACHINE = "(the machine itself)"  # in place of a user, when a machine was lost
_USERS_MIN = 3
_PER_USER_MAX = 2  # jobs of one user that count: a broken program is often submitted again
_OTHERS_MIN = 10  # with fewer gangs elsewhere there is nothing to compare with
_RATE_MIN, _RATE_MAX = 0.005, 0.95  # the lowest and highest rate of faults that is assumed
_FLEET_PRIOR = (1, 100)  # faults and jobs that are assumed elsewhere: few ends prove little
_USER_PRIOR = 20  # jobs of a user that are assumed to have the rate of all others
_RATES = (0.2, 0.45, 0.8)  # of jobs that a lemon makes fail: mild, middling, severe
_HOUR_PRIOR = 20  # jobs of an hour that are assumed to have the rate of the whole window
_OUTAGE_TIMES = 2  # if all jobs hit faults this much more often than usual, the cause is not one machine
_ODDS_MIN = 2_000_000  # a healthy machine is called a lemon less often than once in this many jobs


class End(Struct, frozen=True, gc=False):
    """How a task ended, and where: ``units`` are its node and its GPUs. ``user``: the owner, if known."""

    at_ms: int
    gang: str
    units: tuple[str, ...]
    failure: FailureClass | None = None
    user: str = ""

    @property
    def job(self) -> str:
        """An array is one program, and fails as one."""
        return job_of(self.gang)

    @property
    def is_fault(self) -> bool:
        return self.failure in INFRASTRUCTURE

    @property
    def counts(self) -> bool:
        """A cancelled job, or one that failed by itself, says nothing about the machine."""
        return self.failure is None or self.failure in INFRASTRUCTURE


class Tally:
    """How many jobs of each user there were, and how many of them hit a fault, in the known ends."""

    def __init__(self, ends: Iterable[End] = ()) -> None:
        self.jobs, self.faulty = Counter[str](), Counter[str]()  # by user
        self.recovered = Counter[str]()  # by user: jobs that hit a fault, and also ran well
        self.ran_well, self.faults = Counter[str](), Counter[str]()  # ends by job
        self.hours: dict[int, Hour] = {}
        for end in ends:
            self.add(end)

    def add(self, end: End) -> None:
        if end.counts and end.user != MACHINE:
            job, at_hour = end.job, end.at_ms // HOUR_MS
            self._change(end, job, 1)
            hour = self.hours.get(at_hour)
            if hour is None:
                hour = self.hours[at_hour] = Hour()
            hour.ends += 1
            hour.jobs.add(job)
            if end.is_fault:
                hour.faulty.add(job)

    def remove(self, end: End) -> None:
        if end.counts and end.user != MACHINE:
            at_hour = end.at_ms // HOUR_MS
            self._change(end, end.job, -1)
            hour = self.hours[at_hour]
            hour.ends -= 1  # its jobs are removed all at once: ends are removed in the order of time
            if not hour.ends:
                del self.hours[at_hour]

    def _change(self, end: End, job: str, by: int) -> None:
        alike, others = (self.faults, self.ran_well) if end.is_fault else (self.ran_well, self.faults)
        _add(alike, job, by)
        if alike[job] == max(by, 0):  # the first end of its kind was added, or the last one removed
            _add(self.recovered if job in others else self.jobs, end.user, by)
            if end.is_fault:
                _add(self.faulty, end.user, by)


class Hour:
    """The jobs that ended in an hour, and those of them that hit a fault in it."""

    def __init__(self) -> None:
        self.ends = 0
        self.jobs: set[str] = set()
        self.faulty: set[str] = set()


def _add(counter: Counter[str], key: str, by: int) -> None:
    count = counter.get(key, 0) + by
    if count:
        counter[key] = count
    else:
        del counter[key]


def lemon(
    unit: str, ends: Sequence[End], since_ms: int, settings: HealthSettings, tally: Tally | None = None
) -> Symptom | None:
    """The symptom, if a node or GPU is a lemon. ``tally``: of all ends, if ``ends`` has only those of this unit."""
    if not settings.lemon_failures:
        return None
    here = [end for end in ends if end.at_ms >= since_ms and unit in end.units and end.counts]
    within = span(settings.lemon_window_ms)
    losses = sum(end.user == MACHINE for end in here)
    if losses >= settings.lemon_failures:
        return Symptom("lemon", Health.SUSPECT, f"it was lost {losses} times within {within}")
    tally = tally or Tally(end for end in ends if end.at_ms >= since_ms)
    if not _is_worth_comparing(here, tally, settings.lemon_failures):
        return None  # the same as below, but sooner: most machines end here
    elsewhere = _Elsewhere(tally, here)
    tried = _by_job(here)
    faults = _faults(tried, elsewhere)
    failed, users = len(faults), len({end.user for end in faults})
    if users < _USERS_MIN or failed < settings.lemon_failures or elsewhere.jobs < _OTHERS_MIN:
        return None
    counting = {end.job for end in faults}
    counted = [end for end in tried if not end.is_fault or end.job in counting]
    if _odds(counted, elsewhere) < _ODDS_MIN:
        return None
    again = sum(elsewhere.ran_well(end.job) for end in faults)
    why = (
        f"jobs of {users} users hit machine faults here within {within} ({failed} of {len(tried)} jobs; "
        f"{elsewhere.faulty} of {elsewhere.jobs} elsewhere), and succeed elsewhere"
    )
    if again:
        why += f"; {again} of these jobs succeeded elsewhere afterwards"
    return Symptom("lemon", Health.SUSPECT, why)


def _is_worth_comparing(here: Sequence[End], tally: Tally, failures: int) -> bool:
    """Whether enough jobs of enough users hit faults here, and only here."""
    faults = [end for end in here if end.is_fault and end.user not in ("", MACHINE)]
    counts = Counter(end.job for end in faults)
    users = {end.job: end.user for end in faults if counts[end.job] == tally.faults[end.job]}
    return len(users) >= failures and len({*users.values()}) >= _USERS_MIN


class _Elsewhere:
    """How jobs do on other machines."""

    def __init__(self, tally: Tally, here: Sequence[End]) -> None:
        self._tally, self._here = tally, Tally(here)
        # By user: jobs that were only here; those that hit faults only here; and of these, those that ran well.
        self._jobs = Counter[str]()
        self._faulty = Counter[str]()
        self._recovered = Counter[str]()
        for job, user in {end.job: end.user for end in here if end.user != MACHINE}.items():
            self._jobs[user] += not self.met(job) and not self.ran_well(job)
            if job in self._here.faults and not self.met(job):
                self._faulty[user] += 1
                self._recovered[user] += job in tally.ran_well
        self.jobs = tally.jobs.total() - self._jobs.total()
        self.faulty = tally.faulty.total() - self._faulty.total()
        recovered = tally.recovered.total() - self._recovered.total()
        faults, jobs = _FLEET_PRIOR
        self._rate = (self.faulty + faults) / (self.jobs + jobs)
        self._recovering = (recovered + faults) / (self.jobs + jobs)
        self._hourly = self._in_hours(tally.hours)

    def of(self, user: str) -> tuple[int, int]:
        """How many jobs, and how many of them hit a fault."""
        return self._tally.jobs[user] - self._jobs[user], self._tally.faulty[user] - self._faulty[user]

    def fares_well(self, user: str) -> bool:
        jobs, faulty = self.of(user)
        return jobs > 3 * faulty

    def met(self, job: str) -> bool:
        """Whether the same program hit faults elsewhere as well."""
        return self._tally.faults[job] > self._here.faults[job]

    def ran_well(self, job: str) -> bool:
        """Whether the same program ran well elsewhere."""
        return self._tally.ran_well[job] > self._here.ran_well[job]

    def usual(self, end: End) -> float:
        """How likely a fault is on a healthy machine at that time, for a job of this user that does elsewhere what this
        one does."""
        jobs, count = self.of(end.user)
        rate = self._rate
        if end.is_fault and self.ran_well(end.job):
            count = self._tally.recovered[end.user] - self._recovered[end.user]
            rate = self._recovering
        of_user = (count + _USER_PRIOR * rate) / (jobs + _USER_PRIOR)
        return min(max(of_user, self._outage(end.at_ms // HOUR_MS), _RATE_MIN), _RATE_MAX)

    def _outage(self, hour: int) -> float:
        """The rate of faults of all jobs in this hour, if it is far higher than usual; else 0."""
        rate = self._in_hours([hour])
        return rate if rate > _OUTAGE_TIMES * self._hourly else 0.0

    def _in_hours(self, hours: Iterable[int]) -> float:
        jobs, faulty = float(_HOUR_PRIOR), _HOUR_PRIOR * self._rate
        for hour in hours:
            for tally, sign in ((self._tally, 1), (self._here, -1)):
                if known := tally.hours.get(hour):
                    jobs += sign * len(known.jobs)
                    faulty += sign * len(known.faulty)
        return faulty / jobs


def _by_job(here: Sequence[End]) -> list[End]:
    """One end of each job, in the order of time: its first fault, if it hit one."""
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


def _odds(tried: Sequence[End], elsewhere: _Elsewhere) -> float:
    """The highest odds that were ever reached, averaged over the rates at which a lemon makes jobs fail. A job that
    runs well always counts for the machine, also if its user is unknown."""
    most, odds = 0.0, [0.0 for _ in _RATES]
    for end in tried:
        usual = elsewhere.usual(end)
        for n, rate in enumerate(_RATES):
            odds[n] = (1 + odds[n]) * ((usual + (1 - usual) * rate) / usual if end.is_fault else 1 - rate)
        most = max(most, sum(odds) / len(odds))
    return most
