"""How jobs ended that Slurm's controller has forgotten, from the accounting of the cluster (slurmdbd).

The accounting is never trusted about running jobs. A job that the controller lost stays RUNNING in it for ever, or is
recorded as CANCELLED by no user when the controller starts without its state, although it may still run: both count as
unknown. So does an accounting that is missing, does not answer, or answers too late.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import inf

from corral.providers.base import ProviderRefused, ProviderUnavailable
from corral.providers.slurm.job_states import ENDED
from corral.providers.slurm.slurm_commands import NAMES_AT_ONCE, SlurmCommands, SlurmJobRecord

_log = logging.getLogger(__name__)

_AGAIN_S = 30.0  # until the same name is queried again
_APART_S = 3.0  # between two queries; less than a fleet waits before it gives up an unknown pilot
_AWAY_S = 120.0  # after a query without an answer


class SlurmAccounting:
    def __init__(self, commands: SlurmCommands, clock: Callable[[], float] = time.monotonic) -> None:
        self._commands, self._clock = commands, clock
        self._ends: dict[str, SlurmJobRecord] = {}
        self._asked_s: dict[str, float] = {}
        self._next_s, self._is_away = -inf, False

    def ends(self, names: Sequence[str]) -> dict[str, SlurmJobRecord]:
        """How jobs ended, by name, as far as it is known. ``names``: all that the controller has forgotten; results for
        other names are dropped. A known end is not queried again."""
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
        except (ProviderUnavailable, ProviderRefused) as wrong:
            if not self._is_away:
                _log.warning("cannot read from Slurm's accounting how old jobs ended: %s", wrong)
            self._next_s, self._is_away = self._clock() + _AWAY_S, True
            return
        now_s = self._clock()
        self._next_s, self._is_away = now_s + _APART_S, False
        self._asked_s |= dict.fromkeys(names, now_s)
        by_name: dict[str, list[SlurmJobRecord]] = {name: [] for name in names}
        for record in records:
            by_name.get(record.name, []).append(record)
        self._ends |= {name: end for name, found in by_name.items() if (end := last_end(found)) is not None}


def last_end(records: Sequence[SlurmJobRecord]) -> SlurmJobRecord | None:
    """Of all jobs with one name, the one that ended last. None: there is none, or one of them has no trustworthy end.
    Job numbers do not say which is later: Slurm reuses them."""
    if not records or not all(map(_is_over, records)):
        return None
    return max(records, key=lambda record: record.ended_s or 0)


def _is_over(record: SlurmJobRecord) -> bool:
    is_written_off = record.state == "CANCELLED" and record.by is None
    return record.state in ENDED and record.ended_s is not None and not is_written_off
