"""Stragglers: nodes on which ranks of a gang take longer for a step than the other ranks of the same gang.

Pure. All ranks of a gang do the same work, so they can be compared with each other; and all wait for the slowest, so
one slow node slows the whole gang. The times that ranks report do not include waiting for other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from msgspec import Struct, field

from corral.runtime.base import PaceReport
from corral.wire.health import HealthSettings

_RANKS_MIN = 4
_LOOKS = 3  # consecutive checks
_USERS_MIN = 2  # the reports of one user's jobs are not enough
#: A rank is also slow if it is steadily slower than the others: by the medians of its last reports (one about every
#: 10 s), by this much, and by this many times the usual difference between ranks.
_REPORTS_MIN = 6
_REPORTS_MAX = 18
_STEADY_PERCENT = 115
_SPREADS = 4


class _Slow(Struct):
    """``looks``: consecutive checks in which the node was slow; ``users``: whose gangs reported it, and when last."""

    looks: int = 0
    users: dict[str, int] = field(default_factory=dict)
    why: str = ""
    seen_ms: int = 0


class _Gang(Struct):
    attempt: int
    said: dict[int, tuple[str, int]] = field(default_factory=dict)  # rank -> node, milliseconds
    recent: dict[int, list[int]] = field(default_factory=dict)  # rank -> milliseconds of its last reports


class Stragglers:
    """``take`` gets every report, ``stragglers`` is called regularly. A report holds until the next one: agents send
    changes only."""

    def __init__(self) -> None:
        self._gangs: dict[str, _Gang] = {}
        self._slow: dict[str, _Slow] = {}  # by node

    def take(self, report: PaceReport) -> None:
        gang = self._gangs.get(report.key.gang)
        if gang is None or gang.attempt < report.key.attempt:
            gang = self._gangs[report.key.gang] = _Gang(report.key.attempt)
        if gang.attempt == report.key.attempt:
            gang.said.update({rank: (report.node, busy_ms) for rank, busy_ms in report.busy_ms})
            for rank, busy_ms in report.busy_ms:
                gang.recent[rank] = [*gang.recent.get(rank, ()), busy_ms][-_REPORTS_MAX:]

    def forget(self, gang: str) -> None:
        self._gangs.pop(gang, None)

    def stragglers(self, now_ms: int, settings: HealthSettings, user_of: Callable[[str], str]) -> dict[str, str]:
        """The reason for each straggler, by node: slow in several consecutive checks according to gangs of several
        users, and not yet normal again for ``quiet_ms``."""
        seen: dict[str, str] = {}
        for name in self._gangs:
            for node, why in self._slow_of(name, settings):
                seen[node] = why
                self._slow.setdefault(node, _Slow()).users[user_of(name)] = now_ms
        for node, why in seen.items():
            slow = self._slow[node]
            slow.looks += 1
            slow.seen_ms = now_ms
            slow.why = slow.why or why
        for node, slow in list(self._slow.items()):
            if node not in seen and (slow.looks < _LOOKS or now_ms - slow.seen_ms > settings.quiet_ms):
                del self._slow[node]
        return {
            node: slow.why
            for node, slow in self._slow.items()
            if slow.looks >= _LOOKS and len(slow.users.keys() - {""}) >= _USERS_MIN
        }

    def slow_ranks(self, name: str, settings: HealthSettings) -> list[str]:
        """Each rank of a gang that is slow now, in words: much slower than the others, or steadily."""
        found = {rank: f"rank {rank} on {node} {pace}" for node, rank, pace in self._slow_ranks(name, settings)}
        known = self._gangs.get(name)
        if known is not None and settings.straggler_percent_max:
            for rank, ms, usual_ms in steadily_slow(known.recent):
                times = f"{ms / usual_ms:.1f} times as long as the others"
                pace = f"takes {times} for a step: {ms:.0f} ms, the median is {usual_ms:.0f} ms"
                found.setdefault(rank, f"rank {rank} on {known.said[rank][0]} {pace}")
        return [found[rank] for rank in sorted(found)]

    def slowed(self, settings: HealthSettings) -> dict[str, tuple[int, str, int]]:
        """Gangs whose ranks wait for a steadily slow one: the attempt, its node, and its percentage of the usual time.

        Of several slow ranks the slowest counts: the others of the gang wait for it."""
        found = {}
        for name, known in self._gangs.items():
            slow = steadily_slow(known.recent) if settings.straggler_percent_max else []
            if slow:
                rank, ms, usual_ms = max(slow, key=lambda each: each[1])
                found[name] = known.attempt, known.said[rank][0], round(100 * ms / usual_ms)
        return found

    def _slow_of(self, name: str, settings: HealthSettings) -> list[tuple[str, str]]:
        found = self._slow_ranks(name, settings)
        return [(node, f"straggler: rank {rank} of {name} {pace}") for node, rank, pace in found]

    def _slow_ranks(self, name: str, settings: HealthSettings) -> list[tuple[str, int, str]]:
        """The node, the number and the pace of each."""
        known = self._gangs.get(name)
        if known is None or len(known.said) < _RANKS_MIN or not settings.straggler_percent_max:
            return []
        usual_ms = median(ms for _, ms in known.said.values())
        return [
            (node, rank, f"takes {ms} ms for a step, the median is {usual_ms:.0f} ms")
            for rank, (node, ms) in sorted(known.said.items())
            if ms * 100 > usual_ms * settings.straggler_percent_max
        ]


def steadily_slow(recent: dict[int, list[int]]) -> list[tuple[int, float, float]]:
    """Ranks whose last reports are steadily longer than those of the others: rank, its median, that of the others.

    Medians of single ranks are compared, so that a few long steps do not count; and with the usual difference between
    ranks, so that noise does not count.
    """
    if len(recent) < _RANKS_MIN or min(map(len, recent.values())) < _REPORTS_MIN:
        return []
    medians = {rank: median(each) for rank, each in recent.items()}
    ordered = sorted(medians.items(), key=lambda each: each[1])
    found = []
    for rank, ms in ordered[len(ordered) // 2 :]:  # a slow one is among the slower half
        others = [other for name, other in ordered if name != rank]
        usual = median(others)
        spread = median(abs(other - usual) for other in others)
        if usual > 0 and ms > max(usual * _STEADY_PERCENT / 100, usual + _SPREADS * spread):
            found.append((rank, ms, usual))
    return sorted(found)
