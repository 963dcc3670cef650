"""The charts of a report: runs over time, distributions over jobs, shares of teams.

Knows the data and names of charts; ``svg`` writes shapes, and the page arranges charts. One colour and one dash per
run, the same in every chart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct

from corral.sim.report.job_figures import JobFigures, figures
from corral.sim.report.measures import is_measured
from corral.sim.report.result import Result
from corral.sim.report.series import Series, Steps, columns
from corral.sim.report.svg import Axis, Canvas, Point, amount_axis, log_time_axis, time_axis
from corral.sim.report.wording import duration

COLUMNS_MAX = 300
CURVE_POINTS_MAX = 300
TEAM_COLUMNS_MAX = 120
HOVER_COLUMNS = 100
TEAMS_MAX = 7
OTHERS = "all others"


class Chart(Struct, frozen=True):
    """A chart without its frame: title, description and shapes."""

    title: str
    description: str
    canvas: Canvas
    key: tuple[tuple[str, int, int], ...] = ()  # (name, colour, dash)


def span(results: Sequence[Result]) -> tuple[int, int]:
    """From the first submission to the end of the longest run."""
    spans = [result.measures.span_ms for result in results]
    return min(since for since, _ in spans), max(until for _, until in spans)


def key(results: Sequence[Result]) -> tuple[tuple[str, int, int], ...]:
    return tuple((result.policy, number, number) for number, result in enumerate(results))


# ---- over time -----------------------------------------------------------------------------------------------------


def utilisation(results: Sequence[Result]) -> Chart:
    """GPUs held as a share of those in service. A single run also shows the useful part."""
    gpus = max((result.measures.cluster.gpus_max for result in results), default=0) * 1000
    drawn: list[tuple[str, Result, Callable[[Series], Steps]]] = [
        (result.policy, result, lambda run: run.held) for result in results
    ]
    names = key(results)
    if len(results) == 1:
        drawn = [("held", results[0], lambda run: run.held), ("useful", results[0], lambda run: run.useful)]
        names = (("held", 0, 0), ("useful", 1, 1))
    percent = Axis(0, 100, tuple((float(n), f"{n} %") for n in range(0, 101, 25)))
    return Chart(
        "GPUs in use",
        "Share of the GPUs that are held by gangs, over time. The line is the mean of each column, the band around it "
        "reaches from the least to the greatest value.",
        _over_time(drawn, span(results), percent, 100 / gpus if gpus else 0, Canvas(width=1300), " %"),
        names,
    )


def gpus_in_line(results: Sequence[Result]) -> Chart:
    return _line_chart(results, lambda run: run.in_line, 0.001, "Queued GPUs", "GPUs that queued jobs request")


def jobs_in_line(results: Sequence[Result]) -> Chart:
    return _line_chart(results, lambda run: run.jobs_in_line, 1, "Queued jobs", "Jobs without seats")


def _line_chart(
    results: Sequence[Result], function: Callable[[Series], Steps], scale: float, title: str, what: str
) -> Chart:
    greatest = max((max(function(result.over_time).values, default=0) for result in results), default=0)
    drawn = [(result.policy, result, function) for result in results]
    canvas = _over_time(drawn, span(results), amount_axis(greatest * scale), scale, Canvas())
    return Chart(title, f"{what}, over time; mean, least and greatest value of each column.", canvas, key(results))


def _over_time(
    drawn: Sequence[tuple[str, Result, Callable[[Series], Steps]]],
    between: tuple[int, int],
    up: Axis,
    scale: float,
    canvas: Canvas,
    unit: str = "",
) -> Canvas:
    across = time_axis(*between)
    canvas.axes(across, up)
    for number, (_, result, function) in enumerate(drawn):
        found = columns(function(result.over_time), between[0], result.measures.span_ms[1], COLUMNS_MAX)
        edges = [(across.place(column.since_ms), across.place(column.until_ms), column) for column in found]
        upper = [(x, up.place(column.most * scale)) for lo, hi, column in edges for x in (lo, hi)]
        lower = [(x, up.place(column.least * scale)) for lo, hi, column in edges for x in (lo, hi)]
        canvas.band(upper, lower, number)
        middle = [((lo + hi) / 2, up.place(column.mean * scale)) for lo, hi, column in edges]
        if edges:
            middle = [(edges[0][0], middle[0][1]), *middle, (edges[-1][1], middle[-1][1])]
        canvas.line(middle, number, number)
    _hover_over_time(canvas, drawn, between, scale, unit)
    return canvas


def _hover_over_time(
    canvas: Canvas,
    drawn: Sequence[tuple[str, Result, Callable[[Series], Steps]]],
    between: tuple[int, int],
    scale: float,
    unit: str,
) -> None:
    """The mean of each run at the pointer."""
    across = time_axis(*between)
    runs = [
        (name, columns(function(result.over_time), between[0], between[1], HOVER_COLUMNS), result.measures.span_ms[1])
        for name, result, function in drawn
    ]
    for n, column in enumerate(runs[0][1] if runs else ()):
        shown = [f"{name} {found[n].mean * scale:,.4g}{unit}" for name, found, end in runs if column.since_ms < end]
        tip = f"{duration(column.since_ms - between[0])}: {', '.join(shown)}"
        canvas.hover(across.place(column.since_ms), across.place(column.until_ms), tip)


# ---- over jobs -----------------------------------------------------------------------------------------------------


def completion_curve(results: Sequence[Result]) -> Chart:
    return _curve(results, lambda found: found.completion_ms, "Completion time", "from submission to the end")


def waiting_curve(results: Sequence[Result]) -> Chart:
    return _curve(results, lambda found: found.in_line_ms, "Queue time", "without seats, preemptions included")


def _curve(results: Sequence[Result], value: Callable[[JobFigures], int | None], title: str, what: str) -> Chart:
    """The share of the jobs that took at most a given time."""
    ranked = [sorted(_values(result, value)) for result in results]
    across = log_time_axis(max((values[-1] for values in ranked if values), default=0))
    up = Axis(0, 1, tuple((n / 100, f"{n} %") for n in range(0, 101, 25)))
    canvas = Canvas()
    canvas.axes(across, up)
    for number, values in enumerate(ranked):
        canvas.line(_steps_up(values, across, up), number, number)
    if any(ranked):
        _hover_curve(canvas, results, ranked, across)
    else:
        canvas.note("no job has ended")
    return Chart(
        title,
        f"Share of the ended jobs whose time {what} was at most the time shown (logarithmic). Further left is better.",
        canvas,
        key(results),
    )


def _hover_curve(canvas: Canvas, results: Sequence[Result], ranked: Sequence[Sequence[int]], across: Axis) -> None:
    """The share of the jobs of each run that took at most the time at the pointer."""
    for n in range(HOVER_COLUMNS):
        most_ms = across.lo * (across.hi / across.lo) ** ((n + 1) / HOVER_COLUMNS)
        shown = [
            f"{result.policy} {100 * bisect_right(values, most_ms) / len(values):.0f} %"
            for result, values in zip(results, ranked, strict=True)
            if values
        ]
        tip = f"at most {duration(most_ms)}: {', '.join(shown)}"
        canvas.hover(n / HOVER_COLUMNS, (n + 1) / HOVER_COLUMNS, tip)


def _values(result: Result, value: Callable[[JobFigures], int | None]) -> list[int]:
    history = result.history
    found = [value(figures(job, history.end_ms)) for job in history.jobs.values() if is_measured(job)]
    return [each for each in found if each is not None]


def _steps_up(values: Sequence[int], across: Axis, up: Axis) -> list[Point]:
    """The distribution as steps, thinned to a number of ranks; the first and the last are always included."""
    if not values:
        return []
    many = min(len(values), CURVE_POINTS_MAX)
    points, height = [], 0.0
    for n in range(1, many + 1):
        rank = len(values) * n // many
        x = across.place(values[rank - 1])
        points += [(x, up.place(height)), (x, up.place(rank / len(values)))]
        height = rank / len(values)
    return [*points, (1.0, 1.0)]


# ---- teams ---------------------------------------------------------------------------------------------------------


def team_colours(results: Sequence[Result]) -> dict[str, int]:
    """The teams that held the most, each with its colour; all others share the last colour."""
    held: dict[str, float] = {}
    for result in results:
        for team, group in result.measures.teams.items():
            held[team] = held.get(team, 0) + group.held_gpu_hours
    largest = sorted(held, key=lambda team: (-held[team], team))
    return {team: min(number, TEAMS_MAX) for number, team in enumerate(largest)}


def team_key(colours: dict[str, int]) -> tuple[tuple[str, int, int], ...]:
    named = [(team, colour, 0) for team, colour in colours.items() if colour < TEAMS_MAX]
    return (*named, (OTHERS, TEAMS_MAX, 0)) if len(named) < len(colours) else tuple(named)


def team_shares(result: Result, colours: dict[str, int], between: tuple[int, int]) -> Chart:
    """Share of the cluster that each team held over time, stacked."""
    canvas, across = Canvas(), time_axis(*between)
    up = Axis(0, 100, tuple((float(n), f"{n} %") for n in range(0, 101, 25)))
    canvas.axes(across, up)
    gpus, until = result.measures.cluster.gpus_max * 1000, result.measures.span_ms[1]
    layers: dict[int, list[float]] = {}
    places: list[float] = []
    for team, steps in result.over_time.teams.items():
        found = columns(steps.held, between[0], until, TEAM_COLUMNS_MAX)
        places = [across.place(x) for column in found for x in (column.since_ms, column.until_ms)]
        means = [column.mean for column in found]
        before = layers.setdefault(colours[team], [0.0] * len(means))
        layers[colours[team]] = [one + other for one, other in zip(before, means, strict=True)]
    floor = [0.0] * len(places)
    for colour, means in sorted(layers.items()):
        top = [low + mean * 100 / gpus for low, mean in zip(floor, _twice(means), strict=True)] if gpus else floor
        upper = [(x, up.place(y)) for x, y in zip(places, top, strict=True)]
        lower = [(x, up.place(y)) for x, y in zip(places, floor, strict=True)]
        canvas.band(upper, lower, colour, "area")
        floor = top
    _hover_shares(canvas, result, colours, between)
    words = "Share of the GPUs that each team held, over time, stacked on each other."
    return Chart(f"Shares of teams under {result.policy}", words, canvas)


def _hover_shares(canvas: Canvas, result: Result, colours: dict[str, int], between: tuple[int, int]) -> None:
    """The share of each team with a colour of its own at the pointer."""
    gpus, across = result.measures.cluster.gpus_max * 1000, time_axis(*between)
    until = result.measures.span_ms[1]
    held = {
        team: columns(steps.held, between[0], until, HOVER_COLUMNS)
        for team, steps in result.over_time.teams.items()
        if colours[team] < TEAMS_MAX
    }
    first = next(iter(held.values()), [])
    for n, column in enumerate(first if gpus else []):
        shown = [f"{team} {100 * found[n].mean / gpus:.0f} %" for team, found in held.items()]
        tip = f"{duration(column.since_ms - between[0])}: {', '.join(shown)}"
        canvas.hover(across.place(column.since_ms), across.place(column.until_ms), tip)


def _twice(values: Sequence[float]) -> list[float]:
    return [value for value in values for _ in range(2)]
