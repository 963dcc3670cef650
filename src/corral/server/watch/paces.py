"""Stragglers: machines on which ranks of a gang are busy with a step for longer than the others of the same gang.

Pure. All ranks of a gang do the same work, so the gang is the measure of each; and all wait for the slowest, so one
machine that is slow slows everybody. What ranks say is without the time in which they wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from msgspec import Struct, field

from corral.backends.base import PaceReport
from corral.wire.health import HealthSettings

_RANKS_MIN = 4
_LOOKS = 3  # in a row: once is nobody's fault
_USERS_MIN = 2  # a job's own word is not enough


class _Slow(Struct):
    """``looks``: in how many looks in a row it was slow; ``users``: whose gangs said so, and when they last did."""

    looks: int = 0
    users: dict[str, int] = field(default_factory=dict)
    why: str = ""
    seen_ms: int = 0


class _Gang(Struct):
    attempt: int
    said: dict[int, tuple[str, int]] = field(default_factory=dict)  # rank -> where, milliseconds


class Paces:
    """``take`` is given every report, ``stragglers`` is asked regularly. What was said holds until something else is:
    it is told when it changes."""

    def __init__(self) -> None:
        self._gangs: dict[str, _Gang] = {}
        self._slow: dict[str, _Slow] = {}  # by node

    def take(self, report: PaceReport) -> None:
        gang = self._gangs.get(report.key.gang)
        if gang is None or gang.attempt < report.key.attempt:
            gang = self._gangs[report.key.gang] = _Gang(report.key.attempt)
        if gang.attempt == report.key.attempt:
            gang.said.update({rank: (report.node, busy_ms) for rank, busy_ms in report.busy_ms})

    def forget(self, gang: str) -> None:
        self._gangs.pop(gang, None)

    def stragglers(self, now_ms: int, settings: HealthSettings, user_of: Callable[[str], str]) -> dict[str, str]:
        """Why, by node: slow in several looks in a row by the word of gangs of several users, and since then not well
        again for as long as any symptom."""
        seen: dict[str, str] = {}
        for name in self._gangs:
            for node, why in self._slow_of(name, settings):
                seen[node] = why
                self._slow.setdefault(node, _Slow()).users[user_of(name)] = now_ms
        for node, why in seen.items():
            slow = self._slow[node]
            slow.looks, slow.seen_ms, slow.why = slow.looks + 1, now_ms, slow.why or why
        for node, slow in list(self._slow.items()):
            if node not in seen and (slow.looks < _LOOKS or now_ms - slow.seen_ms > settings.quiet_ms):
                del self._slow[node]
        return {
            node: slow.why
            for node, slow in self._slow.items()
            if slow.looks >= _LOOKS and len(slow.users.keys() - {""}) >= _USERS_MIN
        }

    def _slow_of(self, name: str, settings: HealthSettings) -> list[tuple[str, str]]:
        said = self._gangs[name].said
        if len(said) < _RANKS_MIN or not settings.straggler_percent_max:
            return []
        usual_ms = median(ms for _, ms in said.values())
        return [
            (node, f"straggler: rank {rank} of {name} is busy for {ms} ms with a step, others for {usual_ms:.0f} ms")
            for rank, (node, ms) in sorted(said.items())
            if ms * 100 > usual_ms * settings.straggler_percent_max
        ]
