"""The report of one or several runs as a page: one HTML file that needs no network and no script.

Arranges charts and tables. Names of jobs, teams and policies are untrusted: all text goes through ``svg.text``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from corral.sim.report import plots
from corral.sim.report.comparison import GROUP_COLUMNS, Written, comparison, remarks
from corral.sim.report.gantt import gantt
from corral.sim.report.look import STYLE
from corral.sim.report.measures import Group
from corral.sim.report.plots import Chart
from corral.sim.report.result import Result
from corral.sim.report.svg import text
from corral.sim.report.verdict import verdict
from corral.sim.report.wording import duration, share

TEAM_ROWS_MAX = 50

_WORDS = (
    ("completion", "from submission to the end of the job"),
    ("queued", "not ended and without seats: before the first start and after every eviction"),
    ("bounded slowdown", "completion time over the length of the job, which counts as ten seconds at least"),
    ("effective training time", "running time that was kept, as a share of the completion time"),
    ("GPU uptime", "GPU time that went into work that was kept, as a share of the GPU time in service"),
    ("utilisation", "GPU time held by gangs, working or not, as a share of the GPU time in service"),
    ("window", "from the first to the last submission: the same for every policy"),
    ("span", "from the first submission to the end of the run, which depends on the policy"),
    ("fragmentation", "of the GPU time that was free while jobs were queued, the part on nodes partly in use"),
    ("share deficit", "GPU time that teams were entitled to (max-min fair) and did not get, of that in service"),
    ("share deviation", "the deficit, and in the same way what teams got beyond their entitlement"),
    ("Jain's index", "how even teams are in received over wanted GPU time; 1 is perfectly even"),
    ("finish-time ratio", "completion time over that in a cluster of the team alone, one n-th of this one"),
)


def page(results: Sequence[Result], title: str = "Simulation report") -> str:
    """The whole page."""
    numbers = count(1)
    parts = [_head(results, title), *_notes(results)]
    if results:
        parts += [
            *_charts(results, numbers),
            *_nodes(results, numbers),
            _section("compare", "Comparison" if len(results) > 1 else "Measures", [_comparison(results)]),
            _section("teams", "By team", [_groups(results, "team")]),
            _section("sizes", "By size (GPUs of a job)", [_groups(results, "size")]),
        ]
    words = "".join(f"<dt>{text(word)}</dt><dd>{text(meaning)}</dd>" for word, meaning in _WORDS)
    parts.append(_section("words", "Definitions", [f"<dl>{words}</dl>"]))
    return framed(title, parts)


def framed(title: str, parts: Iterable[str]) -> str:
    """Parts of a page as one HTML file."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{text(title)}</title><style>{STYLE}</style></head>\n'
        f"<body><main>{chr(10).join(parts)}</main></body></html>\n"
    )


def _head(results: Sequence[Result], title: str) -> str:
    facts = []
    if results:
        measures, total = results[0].measures, results[0].measures.total
        workloads = dict.fromkeys(result.workload for result in results if result.workload)
        facts = [
            *workloads,
            f"{total.jobs + total.refused:,} jobs",
            f"{len(measures.teams):,} teams",
            f"{measures.cluster.gpus_max:,g} GPUs",
            f"submissions over {duration(measures.window_ms[1] - measures.window_ms[0])}",
        ]
    cards = "".join(_card(number, result) for number, result in enumerate(results))
    shown = "".join(f"<li>{text(fact)}</li>" for fact in facts)
    lines = "".join(f"<p>{text(line)}</p>" for line in verdict(results))
    said = f'<section id="verdict" aria-label="Verdict">{lines}</section>' if lines else ""
    head = f'<h1>{text(title)}</h1><ul class="facts">{shown}</ul>'
    return f'<header>{head}{said}<div class="cards">{cards}</div></header>'


def _card(number: int, result: Result) -> str:
    measures = result.measures
    completion = measures.total.completion_ms
    figures = (
        (duration(completion.mean if completion else None), "mean completion"),
        (share(measures.cluster.uptime_in_window), "GPU uptime"),
        (f"{measures.total.preemptions:,}", "preemptions"),
    )
    shown = "".join(f"<div><b>{text(value)}</b><span>{text(label)}</span></div>" for value, label in figures)
    inside = f'<h2>{text(result.policy)}</h2><div class="figures">{shown}</div>'
    return f'<section class="card c{number % 8}">{inside}</section>'


def _notes(results: Sequence[Result]) -> list[str]:
    found = remarks(results)
    items = "".join(f"<li>{text(remark)}</li>" for remark in found)  # before any number
    return [f'<aside aria-label="Notes"><ul>{items}</ul></aside>'] if found else []


def _section(name: str, title: str, parts: Iterable[str]) -> str:
    return f'<section id="{name}"><h2>{text(title)}</h2>{"".join(parts)}</section>'


# ---- charts --------------------------------------------------------------------------------------------------------


def _charts(results: Sequence[Result], numbers: count[int]) -> list[str]:
    between, colours = plots.span(results), plots.team_colours(results)
    in_use = figure(plots.utilisation(results), numbers)
    in_line = [plots.gpus_in_line(results), plots.jobs_in_line(results)]
    over_jobs = [plots.completion_curve(results), plots.waiting_curve(results)]
    of_teams = [plots.team_shares(result, colours, between) for result in results]
    return [
        _section("time", "Over time", [in_use, _grid(in_line, numbers)]),
        _section("jobs", "Over jobs", [_grid(over_jobs, numbers)]),
        _section("shares", "Shares of teams", [_key(plots.team_key(colours)), _grid(of_teams, numbers)]),
    ]


def _nodes(results: Sequence[Result], numbers: count[int]) -> list[str]:
    between, colours = plots.span(results), plots.team_colours(results)
    charts = [figure(gantt(result, colours, between), numbers) for result in results]
    return [_section("nodes", "Nodes", [_key(plots.team_key(colours)), *charts])]


def _grid(charts: Iterable[Chart], numbers: count[int]) -> str:
    return f'<div class="grid2">{"".join(figure(chart, numbers) for chart in charts)}</div>'


def figure(chart: Chart, numbers: count[int]) -> str:
    """A chart with its title, description and legend. ``numbers`` makes its ids unique on the page."""
    drawing = chart.canvas.svg(next(numbers), chart.title, chart.description)
    caption = f"<figcaption><b>{text(chart.title)}</b> {text(chart.description)}</figcaption>"
    return f"<figure>{caption}{_key(chart.key)}{drawing}</figure>"


def _key(entries: Sequence[tuple[str, int, int]]) -> str:
    """The legend: each line or area with its name."""
    sample = '<svg class="sample" viewBox="0 0 28 10" aria-hidden="true">'
    items = "".join(
        f'<li>{sample}<path class="line c{colour % 8} d{dash % 4}" d="M1 5H27"/></svg>{text(name)}</li>'
        for name, colour, dash in entries
    )
    return f'<ul class="key">{items}</ul>' if entries else ""


# ---- tables --------------------------------------------------------------------------------------------------------


def _comparison(results: Sequence[Result]) -> str:
    head = "".join(f'<th scope="col">{text(result.policy)}</th>' for result in results)
    body = []
    sections = comparison(results)
    mark = '<p class="marks"><span class="best"><i></i></span> best of its row</p>' if _has_best(sections) else ""
    for title, rows in sections:
        body.append(f'<tr class="part"><th scope="colgroup" colspan="{len(results) + 1}">{text(title)}</th></tr>')
        for row in rows:
            cells = "".join(_cell(words, number in row.best) for number, words in enumerate(row.texts))
            body.append(f'<tr><th scope="row">{text(row.label)}</th>{cells}</tr>')
    table = f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'{mark}<div class="wide fit">{table}</div>'


def _has_best(sections: Sequence[tuple[str, list[Written]]]) -> bool:
    return any(row.best for _, rows in sections for row in rows)


def _cell(words: str, is_best: bool) -> str:
    return f'<td class="best">{text(words)}<i aria-label="best"></i></td>' if is_best else f"<td>{text(words)}</td>"


def _groups(results: Sequence[Result], kind: str) -> str:
    """A table by team or by size: one block per group, one line per run."""
    of_run = [result.measures.teams if kind == "team" else result.measures.sizes for result in results]
    names = list(dict.fromkeys(name for groups in of_run for name in groups))
    if kind == "team":
        names.sort(key=lambda name: (-max(g[name].held_gpu_hours for g in of_run if name in g), name))
    left_out = f"<p>The {TEAM_ROWS_MAX} largest of {len(names):,}.</p>" if len(names) > TEAM_ROWS_MAX else ""
    head = "".join(f'<th scope="col">{text(column.label)}</th>' for column in GROUP_COLUMNS)
    body = []
    for name in names[:TEAM_ROWS_MAX]:
        for number, (result, groups) in enumerate(zip(results, of_run, strict=True)):
            first = f'<th scope="rowgroup" rowspan="{len(results)}">{text(name or "–")}</th>' if not number else ""
            policy = f'<th scope="row"><span class="dot c{number % 8}"></span>{text(result.policy)}</th>'
            body.append(f"<tr{' class=first' if first else ''}>{first}{policy}{_group_cells(groups.get(name))}</tr>")
    table = f"<table><thead><tr><td></td><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="wide groups">{table}</div>{left_out}'


def _group_cells(group: Group | None) -> str:
    if group is None:
        return f'<td colspan="{len(GROUP_COLUMNS)}"></td>'
    return "".join(f"<td>{text(column.write(column.value(group)))}</td>" for column in GROUP_COLUMNS)
