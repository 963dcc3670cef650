"""Workloads drawn from a description: the same seed gives the same jobs, byte for byte.

Draws from ``random.Random(seed).random`` alone, the one method that Python guarantees to keep, and rounds to whole
seconds, so that neither the version of Python nor the order of a set matters. Reads only the description.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, count, pairwise
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

from msgspec.structs import replace

from corral.sim.traces.description import (
    ANY_MODEL,
    HOUR_MS,
    Arrivals,
    Burst,
    Description,
    Distribution,
    Fixed,
    Lognormal,
    Pareto,
    Team,
    read_description,
)
from corral.sim.traces.text_rows import TraceError
from corral.sim.traces.trace import Trace, TraceJob

Chance = Callable[[], float]  # a number from 0 up to, not including, 1
Value = TypeVar("Value")


def generate(path: Path, name: str = "synthetic", seed: int | None = None) -> Trace:
    """The workload that a YAML file describes, with its own seed or another."""
    description = read_description(path)
    return draw(description if seed is None else replace(description, seed=seed), name)


def draw(description: Description, name: str = "synthetic") -> Trace:
    # Jobs and arrivals have separate random streams: another arrival curve does not change the jobs.
    jobs = Jobs(description, Random(f"{description.seed}/jobs").random)
    chance = Random(f"{description.seed}/arrivals").random
    if description.arrivals.per_hour is not None:
        times = _at_rate(description, description.arrivals.per_hour, chance)
        drawn = [jobs.draw() for _ in times]
    else:
        drawn, span_ms = _amount(description, jobs)
        times = _within(name, description.arrivals, span_ms, len(drawn), chance)
    placed = tuple(
        replace(job, id=f"job-{number}", submit_ms=submit_ms)
        for number, (job, submit_ms) in enumerate(zip(drawn, times, strict=True), start=1)
    )
    return Trace(name, placed, description.nodes, notes=(f"Generated with seed {description.seed}.",))


def offered_load(trace: Trace, span_ms: int) -> float:
    """Requested GPU time in a span, divided by the GPU time of the cluster in it."""
    capacity = sum(entry.count * entry.gpus for entry in trace.nodes)
    return sum(map(_gpu_milli_ms, trace.jobs)) / (1000 * capacity * span_ms)


# --- how many jobs, in how much time ---------------------------------------------------------------------


def _amount(description: Description, jobs: Jobs) -> tuple[list[TraceJob], int]:
    """Two of jobs, span and load give the third. The load is exact, not an average over many seeds."""
    capacity = sum(entry.count * entry.gpus for entry in description.nodes)
    if description.jobs is not None:
        drawn = [jobs.draw() for _ in range(description.jobs)]
        if description.span_ms is not None:
            return drawn, description.span_ms
        asked = sum(map(_gpu_milli_ms, drawn))
        return drawn, max(1, round(asked / (1000 * capacity * (description.load or 1))))
    span_ms = description.span_ms or 0
    wanted = round(1000 * capacity * span_ms * (description.load or 0))
    drawn = []
    while wanted > 0:
        drawn.append(jobs.draw())
        wanted -= _gpu_milli_ms(drawn[-1])
    return drawn, span_ms


def _gpu_milli_ms(job: TraceJob) -> int:
    return job.gpus * job.gpu_milli * job.work_ms


# --- arrivals ----------------------------------------------------------------------------------------------


def _within(name: str, arrivals: Arrivals, span_ms: int, amount: int, chance: Chance) -> list[int]:
    """Arrivals of a Poisson process with a given number of them in the span."""
    gaps = list(accumulate(_gaps(chance, amount + 1)))
    area = sum((min(end, span_ms) - start) * weight for start, end, weight in _curve(arrivals, span_ms))
    if not area > 0:
        raise TraceError(name, 0, "arrivals", "are 0 all through the span. Lengthen it or change day and week.")
    scaled = (gap * area / gaps[-1] for gap in gaps[:-1])
    return [min(moment, span_ms - 1) for moment in _unfolded(scaled, _curve(arrivals))]


def _at_rate(description: Description, per_hour: float, chance: Chance) -> list[int]:
    """Arrivals of a Poisson process of a given rate, up to a number of jobs or to the end of a span."""
    folded = (gap * HOUR_MS / per_hour for gap in accumulate(_gaps(chance, description.jobs)))
    times = []
    for moment in _unfolded(folded, _curve(description.arrivals)):
        if description.span_ms is not None and moment >= description.span_ms:
            break
        times.append(moment)
    return times


def _gaps(chance: Chance, amount: int | None) -> Iterator[float]:
    for _ in count() if amount is None else range(amount):
        yield -math.log(1.0 - chance())


def _unfolded(folded: Iterable[float], curve: Iterator[tuple[int, int, float]]) -> Iterator[int]:
    """From arrival times of a process with rate 1 to those of a process whose rate is the curve."""
    start, end, weight = next(curve)
    before = 0.0
    for moment in folded:
        while moment >= before + (end - start) * weight:
            before += (end - start) * weight
            start, end, weight = next(curve)
        yield int(start + (moment - before) / weight)


def _curve(arrivals: Arrivals, until_ms: int | None = None) -> Iterator[tuple[int, int, float]]:
    """Pieces of constant weight, from time 0; the average weight of a week without bursts is 1."""
    mean = sum(arrivals.day) * sum(arrivals.week) / (24 * 7)
    for hour in count():
        if until_ms is not None and hour * HOUR_MS >= until_ms:
            return
        usual = arrivals.day[hour % 24] * arrivals.week[hour // 24 % 7] / mean
        for start, end in _pieces(arrivals.bursts, hour * HOUR_MS):
            if until_ms is None or start < until_ms:
                yield start, end, usual * math.prod(burst.times for burst in arrivals.bursts if _is_on(burst, start))


def _pieces(bursts: tuple[Burst, ...], hour_ms: int) -> Iterator[tuple[int, int]]:
    """The hour, cut where a burst begins or ends."""
    cuts = {hour_ms, hour_ms + HOUR_MS}
    for burst in bursts:
        for edge in (burst.at_ms, burst.at_ms + burst.for_ms):
            cuts.update(_repeats(edge, burst.every_ms, hour_ms, hour_ms + HOUR_MS))
    return pairwise(sorted(cuts))


def _repeats(first_ms: int, every_ms: int | None, from_ms: int, until_ms: int) -> Iterable[int]:
    """The times of a series within a range."""
    if every_ms is None:
        return [first_ms] if from_ms <= first_ms < until_ms else []
    passed = max(0, -(-(from_ms - first_ms) // every_ms))
    return range(first_ms + passed * every_ms, until_ms, every_ms)


def _is_on(burst: Burst, at_ms: int) -> bool:
    since_ms = at_ms - burst.at_ms
    if since_ms >= 0 and burst.every_ms:
        since_ms %= burst.every_ms
    return 0 <= since_ms < burst.for_ms


# --- jobs --------------------------------------------------------------------------------------------------


class WeightedChoice(Generic[Value]):
    """Values by weight: maps a random number to one of them."""

    def __init__(self, weights: Sequence[tuple[Value, float]]) -> None:
        kept = [(value, weight) for value, weight in weights if weight > 0]
        self._values = [value for value, _ in kept]
        *self._edges, self._total = accumulate(weight for _, weight in kept)

    def turn(self, chance: Chance) -> Value:
        return self._values[bisect_right(self._edges, chance() * self._total)]


class Jobs:
    """Draws jobs without an id and without a time."""

    def __init__(self, description: Description, chance: Chance) -> None:
        self._chance = chance
        self._description = description
        self._sizes = WeightedChoice(description.sizes)
        self._teams = WeightedChoice([(team, team.share) for team in description.teams])
        self._users = {team.name: WeightedChoice(_users(team)) for team in description.teams}
        self._fractions = WeightedChoice(description.fractions)
        self._priorities = WeightedChoice(description.priorities)
        self._durations = [(rule, _sampler(rule.distribution, chance)) for rule in reversed(description.durations)]
        self._models: dict[int, WeightedChoice[tuple[str, ...]]] = {}

    def draw(self) -> TraceJob:
        chance, description = self._chance, self._description
        gpus = self._sizes.turn(chance)
        gpu_milli = self._fractions.turn(chance) if gpus == 1 else 1000
        team = self._teams.turn(chance)
        duration_ms = self._duration_ms(gpus)
        has_failed = chance() < description.failures.part
        share = _uniform(description.failures.after, chance) if has_failed else 1.0
        return TraceJob(
            id="",
            submit_ms=0,
            work_ms=_whole_seconds(duration_ms * share),
            gpus=gpus,
            gpu_milli=gpu_milli,
            models=self._models_for(gpus).turn(chance) if gpus else (),
            cpu_milli=description.cpu_milli_per_gpu * max(gpus, 1) * gpu_milli // 1000,
            memory_mib=description.memory_mib_per_gpu * max(gpus, 1) * gpu_milli // 1000,
            team=team.name,
            user=self._users[team.name].turn(chance),
            priority=self._priorities.turn(chance),
            limit_ms=self._limit_ms(duration_ms),
            status="failed" if has_failed else "completed",
        )

    def _duration_ms(self, gpus: int) -> int:
        rule, sample = next(entry for entry in self._durations if gpus >= entry[0].from_gpus)
        return _whole_seconds(min(max(sample(), rule.least_ms), rule.most_ms))

    def _limit_ms(self, duration_ms: int) -> int | None:
        limits = self._description.limits
        if self._chance() >= limits.part:
            return None
        stated = duration_ms * _uniform(limits.factor, self._chance)
        return math.ceil(stated / limits.round_ms) * limits.round_ms

    def _models_for(self, gpus: int) -> WeightedChoice[tuple[str, ...]]:
        """Only GPU models of which the cluster has enough for a job of this size."""
        if gpus not in self._models:
            wanted = self._description.models
            fitting = [(_accepted(word), weight) for word, weight in wanted if self._has_enough(word, gpus)]
            self._models[gpus] = WeightedChoice(fitting if any(weight for _, weight in fitting) else [((), 1.0)])
        return self._models[gpus]

    def _has_enough(self, word: str, gpus: int) -> bool:
        nodes = self._description.nodes
        accepted = _accepted(word)
        return not nodes or not accepted or gpus <= sum(n.count * n.gpus for n in nodes if n.model in accepted)


def _users(team: Team) -> list[tuple[str, float]]:
    # The second user of a team submits half as often as the first, the third a third as often.
    return [(f"{team.name}-{place}".lstrip("-"), 1 / place) for place in range(1, team.users + 1)]


def _accepted(word: str) -> tuple[str, ...]:
    return () if word == ANY_MODEL else tuple(word.split("|"))


def _sampler(distribution: Distribution, chance: Chance) -> Callable[[], float]:
    """A function that draws a duration in milliseconds."""
    if isinstance(distribution, Fixed):
        return lambda: distribution.ms
    if isinstance(distribution, Lognormal):
        return lambda: distribution.median_ms * math.exp(distribution.sigma * _normal(chance))
    if isinstance(distribution, Pareto):
        return lambda: distribution.least_ms * math.pow(1.0 - chance(), -1.0 / distribution.shape)
    wheel = WeightedChoice([(_sampler(part, chance), weight) for part, weight in distribution.parts])
    return lambda: wheel.turn(chance)()


def _normal(chance: Chance) -> float:
    return math.sqrt(-2.0 * math.log(1.0 - chance())) * math.cos(2.0 * math.pi * chance())


def _uniform(bounds: tuple[float, float], chance: Chance) -> float:
    low, high = bounds
    return low + (high - low) * chance()


def _whole_seconds(ms: float) -> int:
    return max(1, round(ms / 1000)) * 1000
