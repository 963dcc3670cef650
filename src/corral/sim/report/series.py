"""A history over time, as step functions: GPUs in service, held, useful and queued; queued jobs.

Built by adding up changes in order of time, not by sampling: the cost depends on the number of events, not on the
length of the run. Does not know charts.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, compress, pairwise, repeat
from operator import ne

from msgspec import Struct, field

from corral.sim.history import History
from corral.sim.report.job_figures import kept_spell, line_milli_spells, line_spells, working_milli

POINTS_MAX = 600


class Steps(Struct):
    """A step function: ``values[i]`` from ``times[i]`` until the next time; before the first it is 0."""

    times: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def at(self, time_ms: int) -> int:
        place = bisect_right(self.times, time_ms)
        return self.values[place - 1] if place else 0

    def integral(self, since: int, until: int) -> int:
        """The area between two times: value times milliseconds."""
        return self.pieces([since, until])[0] if until > since else 0

    def pieces(self, bounds: list[int]) -> list[int]:
        """The area between each bound and the next."""
        times, values = self.times, self.values
        place = bisect_right(times, bounds[0])
        value, last = (values[place - 1] if place else 0), len(times)
        areas = []
        for since, until in pairwise(bounds):
            area, now = 0, since
            while place < last and times[place] < until:
                area += value * (times[place] - now)
                now, value = times[place], values[place]
                place += 1
            areas.append(area + value * (until - now))
        return areas


class Column(Struct, frozen=True, gc=False):
    """A short piece of a step function: its least, mean and greatest value."""

    since_ms: int
    until_ms: int
    least: int
    mean: float
    most: int


class TeamSteps(Struct):
    """GPU-milli that a team holds, and that its queued jobs request. Its demand is the sum of both."""

    held: Steps
    in_line: Steps


class Series(Struct):
    """A run over time. All amounts are GPU-milli except ``jobs_in_line``."""

    capacity: Steps
    held: Steps
    useful: Steps
    in_line: Steps
    jobs_in_line: Steps
    teams: dict[str, TeamSteps]


#: (time, how much a value changes then), in any order
Changes = list[tuple[int, int]]


def series(history: History) -> Series:
    """The step functions of a history, in one walk over its jobs."""
    useful: Changes = []
    jobs: Changes = []
    teams: dict[str, tuple[Changes, Changes]] = {}
    end_ms = history.end_ms
    for job in history.jobs.values():
        ours = teams.get(job.queue)
        if ours is None:
            ours = teams[job.queue] = ([], [])
        spells = line_spells(job, end_ms)
        for since, until in spells:
            jobs += ((since, 1), (until, -1))
        for since, until, milli in line_milli_spells(job, end_ms, spells):
            ours[1].extend(((since, milli), (until, -milli)))
        for run in job.runs:
            until = end_ms if run.ended_ms is None else run.ended_ms
            ours[0].extend(((run.placed_ms, run.gpu_milli), (until, -run.gpu_milli)))
            milli, (since, until) = working_milli(run), kept_spell(run, end_ms)
            useful += ((since, milli), (until, -milli))
    by_team = {team: TeamSteps(steps(held), steps(in_line)) for team, (held, in_line) in sorted(teams.items())}
    return Series(
        capacity=Steps([time for time, _ in history.capacity], [value for _, value in history.capacity]),
        held=steps([change for held, _ in teams.values() for change in held]),
        useful=steps(useful),
        in_line=steps([change for _, in_line in teams.values() for change in in_line]),
        jobs_in_line=steps(jobs),
        teams=by_team,
    )


def steps(changes: Changes) -> Steps:
    """Changes, added up in order of time. Changes at the same time become one step."""
    ordered = sorted(changes)
    times = [time for time, _ in ordered]
    is_outcome = [*map(ne, times, times[1:]), True]  # the next change is later
    values = accumulate([change for _, change in ordered])
    return Steps(list(compress(times, is_outcome)), list(compress(values, is_outcome)))


def lesser(one: Steps, other: Steps) -> Steps:
    """At each time the smaller of two values."""
    if other.times and one.times and other.times[0] <= one.times[0] and max(one.values) <= min(other.values):
        return one  # most runs lose no node: there is nothing to compare
    found = Steps()
    mine = 0
    yours = 0
    merged = sorted([*zip(one.times, repeat(0), one.values), *zip(other.times, repeat(1), other.values)])
    for time, which, value in merged:
        mine, yours = (mine, value) if which else (value, yours)
        if found.times and found.times[-1] == time:
            found.values[-1] = min(mine, yours)
        else:
            found.times.append(time)
            found.values.append(min(mine, yours))
    return found


def while_any(gate: Steps, function: Steps) -> Steps:
    """A step function where another one is above 0, and 0 elsewhere."""
    found = Steps()
    is_open = False
    value = 0
    merged = sorted([*zip(gate.times, repeat(0), gate.values), *zip(function.times, repeat(1), function.values)])
    for time, which, given in merged:
        is_open, value = (is_open, given) if which else (given > 0, value)
        if found.times and found.times[-1] == time:
            found.values[-1] = value if is_open else 0
        else:
            found.times.append(time)
            found.values.append(value if is_open else 0)
    return found


def columns(function: Steps, since: int, until: int, most: int = POINTS_MAX) -> list[Column]:
    """A step function cut into pieces, up to a maximum, for a chart. Every extreme is kept, even a short one."""
    bounds = even_bounds(since, until, most)
    if len(bounds) < 2:
        return []
    found = []
    for lo, hi, area in zip(bounds, bounds[1:], function.pieces(bounds), strict=False):
        first, last = bisect_right(function.times, lo), bisect_right(function.times, hi - 1)
        values = [function.at(lo), *function.values[first:last]]
        found.append(Column(lo, hi, min(values), area / (hi - lo), max(values)))
    return found


def even_bounds(since: int, until: int, pieces: int) -> list[int]:
    """Bounds of equal pieces, none shorter than a millisecond; only ``since`` where there is no time between them."""
    pieces = max(0, min(pieces, until - since))
    return [since + (until - since) * n // pieces for n in range(pieces + 1)] if pieces else [since]
