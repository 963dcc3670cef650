"""What the accounts of a cluster (slurmdbd) say of jobs that its controller has forgotten: that they ended, and how.

They are never believed about life. What the controller lost stays RUNNING in them for ever, or is written off as
CANCELLED by nobody when it starts without its state, though it may still run: both say nothing here. That there are no
accounts, that they do not answer, or not in time, is the same as that they say nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import inf

from corral.backends.carriers.base import CarrierAway, CarrierRefused
from corral.backends.carriers.slurm.commands import NAMES_AT_ONCE, JobRecord, SlurmCommands
from corral.backends.carriers.slurm.endings import ENDED

_log = logging.getLogger(__name__)

_AGAIN_S = 30.0  # until the same is asked again
_APART_S = 3.0  # between two questions; less than a fleet waits before it gives up a pilot nobody knows
_AWAY_S = 120.0  # after a question that was not answered


class Accounts:
    def __init__(self, commands: SlurmCommands, clock: Callable[[], float] = time.monotonic) -> None:
        self._commands, self._clock = commands, clock
        self._ends: dict[str, JobRecord] = {}
        self._asked_s: dict[str, float] = {}
        self._next_s, self._is_away = -inf, False

    def ends(self, names: Sequence[str]) -> dict[str, JobRecord]:
        """How jobs ended, by name, as far as it is known. ``names``: all that the controller has forgotten; what is not
        among them it knows again, or nobody cares any more. An end that was found is not asked for twice."""
        self._ends = {name: self._ends[name] for name in names if name in self._ends}
        self._asked_s = {name: self._asked_s[name] for name in names if name in self._asked_s}
        now_s = self._clock()
        unknown = [name for name in names if name not in self._ends]
        is_due = any(now_s - self._asked_s.get(name, -inf) >= _AGAIN_S for name in unknown)
        if is_due and now_s >= self._next_s:
            unknown.sort(key=lambda name: self._asked_s.get(name, -inf))
            self._ask(unknown[:NAMES_AT_ONCE])
        return dict(self._ends)

    def _ask(self, names: Sequence[str]) -> None:
        try:
            if not self._commands.config().has_accounts:
                self._next_s = inf
                return
            records = self._commands.records(names)
        except (CarrierAway, CarrierRefused) as wrong:
            if not self._is_away:
                _log.warning("Slurm's accounts say nothing of jobs that ended long ago: %s", wrong)
            self._next_s, self._is_away = self._clock() + _AWAY_S, True
            return
        now_s = self._clock()
        self._next_s, self._is_away = now_s + _APART_S, False
        self._asked_s |= dict.fromkeys(names, now_s)
        by_name: dict[str, list[JobRecord]] = {name: [] for name in names}
        for record in records:
            by_name.get(record.name, []).append(record)
        self._ends |= {name: end for name, found in by_name.items() if (end := last_end(found)) is not None}


def last_end(records: Sequence[JobRecord]) -> JobRecord | None:
    """Of all that were submitted under one name, the one that ended last; None: there is none, or one of them has no
    end to be believed. Numbers of jobs do not tell which is later: they are given again."""
    if not records or not all(map(_is_over, records)):
        return None
    return max(records, key=lambda record: record.ended_s or 0)


def _is_over(record: JobRecord) -> bool:
    is_written_off = record.state == "CANCELLED" and record.by is None
    return record.state in ENDED and record.ended_s is not None and not is_written_off
