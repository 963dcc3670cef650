"""How long gangs run: distributions, folded from the gangs that have ended. Part of the state, so every reader sees the
same one: order, preemption, estimates.

Gangs are compared by kind, from all gangs to those of one user with the same size, time limit and name. A kind keeps
counts of run times in bins, four to a factor of two; recent ones count more. What a kind has seen is mixed with what is
known of the next wider one, so few ended gangs say little. Integers only; decides nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from corral.core.cluster.resources import least_gpu_milli
from corral.core.model import Gang, JobSpec
from corral.duration_text import span

#: Lower ends of the bins: 1 s, then four to a factor of two, up to about a year.
EDGES_MS = tuple(quarter << octave for octave in range(25) for quarter in (1000, 1189, 1414, 1682))
BINS = len(EDGES_MS)
_NEXT_MS = (*EDGES_MS[1:], EDGES_MS[-1] * 2)

ENOUGH = 5  # until this many gangs have ended, nothing is predicted
KINDS_MAX = 4096  # kinds that are remembered; the one without news for longest is forgotten first
_ONE = 16  # an ended gang, in the counts of a kind
_MOST = 256 * _ONE  # then all counts are halved: the latest gangs count most
_WIDER = 4 * _ONE  # what is known of the next wider kind counts like four gangs
_SCALE = 1 << 24  # the sum of a distribution
_SHORTEST_MS, _LONGEST_MS = 60_000, 4 * 24 * 3_600_000  # where nothing is known, every factor between is as likely

#: What gangs are compared by, wider first: each kind is the beginning of the next one.
Kind = tuple[str, ...]

_DIGITS = re.compile(r"\d+")
_PATTERN_MAX = 64


def pattern_of(name: str) -> str:
    """A name without its numbers: ``train-17`` and ``train-18`` are alike."""
    return _DIGITS.sub("#", name)[:_PATTERN_MAX]


def bin_of(length_ms: int) -> int:
    return max(0, bisect_right(EDGES_MS, length_ms) - 1)


def kinds_of(queue: str, user: str, gpu_milli: int, limit_ms: int | None, pattern: str) -> list[Kind]:
    """The kinds of a gang, widest first. ``limit_ms``: its time limit."""
    whole: Kind = (str(gpu_milli), queue, user, "" if limit_ms is None else str(bin_of(limit_ms)), pattern)
    depth = 5 if pattern else 4 if limit_ms is not None else 3
    return [whole[:at] for at in range(depth + 1)]


def kinds_of_gang(gang: Gang, spec: JobSpec, pattern: str) -> list[Kind]:
    return kinds_of(gang.queue, gang.user, least_gpu_milli(gang.demand), spec.time_limit_ms, pattern)


class Forecast:
    """What is known of the run time of one kind: a distribution over the bins."""

    def __init__(self, kind: Kind, seen: int, shares: Sequence[int]) -> None:
        self.kind, self.seen = kind, seen
        self._shares = shares

    @cached_property
    def _left(self) -> list[int]:
        """For each bin, and after the last: how many of ``_SCALE`` gangs run at least that long."""
        left = [0]
        for share in reversed(self._shares):
            left.append(left[-1] + share)
        return left[::-1]

    @cached_property
    def _indexes(self) -> list[int]:
        """For each bin, the least expected run time for each gang that ends (the inverse of the Gittins index): over
        all times to stop at, run time until then divided by the fraction that has ended. Found on the convex hull."""
        left, area = self._left, [0]
        for at in range(BINS - 1, -1, -1):
            area.append(area[-1] + (_NEXT_MS[at] - EDGES_MS[at]) * (left[at] + left[at + 1]) // 2)
        area.reverse()
        found, hull = [0] * BINS, [BINS]
        for at in range(BINS - 1, -1, -1):
            if left[at] == left[-1]:
                found[at] = EDGES_MS[at]  # longer than any before: as long again
                hull = [at]
                continue
            while len(hull) > 1 and _is_better(left, area, at, hull[-2], hull[-1]):
                hull.pop()
            found[at] = max(1, (area[at] - area[hull[-1]]) // (left[at] - left[hull[-1]]))
            hull.append(at)
        return found

    def index_ms(self, done_ms: int) -> int:
        """The expected run time for each gang that ends, for gangs that have run this long."""
        return self._indexes[bin_of(done_ms)]

    def quantile_ms(self, percent: int, done_ms: int = 0) -> int:
        """The run time in total within which this part of the gangs ends that have run this long."""
        left, at = self._left, bin_of(done_ms) if done_ms else 0
        total = left[at]
        if not total:
            return 2 * max(done_ms, EDGES_MS[at])
        wanted = total * (100 - percent) // 100
        while at < BINS - 1 and left[at + 1] > wanted:
            at += 1
        inside = left[at] - left[at + 1]
        low, high = EDGES_MS[at], _NEXT_MS[at]
        return max(done_ms + 1, low + (high - low) * (left[at] - wanted) // inside if inside else low)

    def interval_ms(self, done_ms: int = 0) -> tuple[int, int]:
        """The run times between which 80 of 100 gangs end. Gangs that still run are not among those that ended, so the
        middle 80 % of these would be too narrow."""
        return self.quantile_ms(7, done_ms), self.quantile_ms(93, done_ms)

    def words(self) -> str:
        """What the prediction is based on, in words."""
        size, *rest = (*self.kind, "", "", "", "", "")[:5]
        of = [f"with {_gpus(size)}"] if size else []
        if len(self.kind) > 1:
            of.append(f"in queue {rest[0]}")
        if len(self.kind) > 2:
            of.append(f"of user {rest[1]}")
        if len(self.kind) > 4:
            of.append(f"named {rest[3]}")
        jobs = "1 earlier job" if self.seen == 1 else f"{self.seen} earlier jobs"
        within = span(self.quantile_ms(80))
        return f"like {' '.join([jobs, *of])}: 80 % ended within {within}"


def _is_better(left: Sequence[int], area: Sequence[int], at: int, end: int, than: int) -> bool:
    """Whether less run time is needed for each gang that ends, from one bin until ``end``, than until ``than``."""
    ended = left[at] - left[than]
    return not ended or (area[at] - area[end]) * ended <= (area[at] - area[than]) * (left[at] - left[end])


def _gpus(size: str) -> str:
    milli = int(size)
    return f"{milli // 1000} GPU{'s' * (milli != 1000)}" if milli % 1000 == 0 else f"0.{milli:03} GPUs"


class Lengths(Struct, gc=False):
    """The run times of one kind: counts by bin; and its distribution as of the last time it was mixed."""

    counts: list[int]
    seen: int = 0  # ended gangs, in all
    next_at: int = 1  # it is mixed again when this many have been seen
    shares: list[int] = []


_FIRST, _LAST = bin_of(_SHORTEST_MS), bin_of(_LONGEST_MS)
#: The distribution where nothing is known.
UNKNOWN: list[int] = [_SCALE // (_LAST - _FIRST) if _FIRST <= at < _LAST else 0 for at in range(BINS)]


class Predictions:
    """All that is known of run times."""

    def __init__(self) -> None:
        self.kinds: OrderedDict[Kind, Lengths] = OrderedDict()
        self.version = 0  # how often what is known has changed; only for caches
        self._forecasts: dict[Kind, Forecast] = {}
        #: a cache of readers: what is known of gangs of a queue, a user and a profile, until more is known
        self.by_shape: dict[Any, Forecast | None] = {}

    @property
    def is_ready(self) -> bool:
        """Whether enough gangs have ended to predict anything."""
        known = self.kinds.get(())
        return known is not None and known.seen >= ENOUGH

    def is_known(self, kind: Kind) -> bool:
        """Whether a gang of this kind has ended."""
        return kind in self.kinds

    def add(self, kinds: Sequence[Kind], length_ms: int) -> None:
        """A gang of these kinds, widest first, has ended."""
        at, wider = bin_of(length_ms), UNKNOWN
        for kind in kinds:
            known = self.kinds.get(kind)
            if known is None:
                known = self.kinds[kind] = Lengths([0] * BINS)
            known.counts[at] += _ONE
            known.seen += 1
            if known.seen >= known.next_at:
                self._mix(kind, known, wider)
            wider = known.shares
            self.kinds.move_to_end(kind)
        while len(self.kinds) > KINDS_MAX:
            forgotten, _ = self.kinds.popitem(last=False)
            self._forecasts.pop(forgotten, None)
            self._changed()

    def _mix(self, kind: Kind, known: Lengths, wider: Sequence[int]) -> None:
        total = sum(known.counts)
        if total > _MOST:
            known.counts = [count // 2 for count in known.counts]
            total = sum(known.counts)
        every = total + _WIDER
        known.shares = [
            (count * _SCALE + _WIDER * share) // every for count, share in zip(known.counts, wider, strict=True)
        ]
        known.next_at = known.seen + max(1, min(known.seen, 256) // 8)
        self._forecasts.pop(kind, None)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.by_shape.clear()

    def forecast(self, kinds: Sequence[Kind]) -> Forecast | None:
        """What is known of a gang of these kinds, widest first: of the narrowest of which any has ended."""
        if not self.is_ready:
            return None
        for kind in reversed(kinds):
            found = self._forecasts.get(kind)
            if found is None and (known := self.kinds.get(kind)) is not None:
                found = self._forecasts[kind] = Forecast(kind, known.seen, known.shares)
            if found is not None:
                return found
        return None
