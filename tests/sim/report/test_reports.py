"""Reports: what people see in a terminal and in a browser, and what programs read. Names are whatever people typed."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import msgspec
import pytest
from rich.console import Console

from corral.sim.history import History
from corral.sim.report.comparison import comparison, remarks
from corral.sim.report.gantt import BOXES_MAX, NODES_MAX, gantt
from corral.sim.report.page import page
from corral.sim.report.plots import span, team_colours
from corral.sim.report.result import Result, evaluate
from corral.sim.report.result_files import JOB_COLUMNS, MeasuresFile, measures_json, write_jobs
from corral.sim.report.svg import amount_axis, log_time_axis, text, time_axis
from corral.sim.report.terminal_table import show
from corral.sim.report.wording import duration, share
from tests.sim.report.histories import history, job, random_history, run
from tests.sim.report.test_measures import EDGES

HOSTILE = "<script>alert('x')</script>\"&\x07"


class Reader(HTMLParser):
    """Checks that elements are closed in order; remembers tags, attributes and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    return reader


def two_runs() -> list[Result]:
    slow = job("j", 0, 2, [run(30, 31, 60, 2)], 60, team="größe")
    quick = job("j", 0, 2, [run(0, 1, 30, 2, cause="priority")], 30, team="größe")
    rest = job("k", 20, 1, [run(20, 20, 25)], 25)
    return [evaluate("slow", history(slow, rest, end=60)), evaluate("quick", history(quick, rest, end=40))]


# ---- the terminal --------------------------------------------------------------------------------------------------


def shown(results: list[Result], width: int = 100) -> str:
    out = io.StringIO()
    show(results, Console(file=out, width=width))
    return out.getvalue()


def test_the_best_of_each_row_is_marked():
    lines = shown(two_runs()).splitlines()
    (mean,) = [line for line in lines if "completion, mean" in line]
    assert mean.split("  ")[-1].strip() == "17s ●"  # (30 + 5) / 2
    assert "32s" in mean  # (60 + 5) / 2
    assert max(map(len, lines)) <= 100


def test_many_runs_still_fit_into_a_hundred_columns():
    (one,) = two_runs()[:1]
    results = [Result(f"policy-{n}", "", one.measures, one.history, one.over_time) for n in range(12)]
    lines = shown(results).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(any(f"policy-{n}" in line for line in lines) for n in range(12))


def test_names_are_not_markup():
    (one,) = two_runs()[:1]
    assert "[bold]x[/]" in shown([Result("[bold]x[/]", "", one.measures, one.history, one.over_time)])


def test_who_leaves_jobs_unfinished_is_best_at_nothing():
    fast = evaluate("fast", history(job("a", 0, 1, [run(0, 0, 5)], 5), job("b", 0, 1), end=99))
    whole = evaluate("whole", history(job("a", 0, 1, [run(0, 0, 9)], 9), job("b", 0, 1, [run(0, 0, 99)], 99), end=99))
    best = {number for _, rows in comparison([fast, whole]) for row in rows for number in row.best}
    assert best == {1}
    (remark,) = remarks([fast, whole])
    assert remark.startswith("fast: UNFINISHED: 1 jobs at the end (1 of them never started")


def test_equal_runs_have_no_best():
    same = [two_runs()[0], two_runs()[0]]
    assert not any(row.best for _, rows in comparison(same) for row in rows)


# ---- the page ------------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else():
    html = page(two_runs())
    reader = read(html)
    assert not re.search(r"https?:|//|url\(|@import|src\s*=", html)
    assert not {"script", "link", "iframe", "img", "object"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name in ("href", "src", "style")]


def test_hostile_names_are_only_ever_text():
    nasty = job(HOSTILE, 0, 2, [run(0, 1, 30, 2, HOSTILE, gang=HOSTILE, cause="priority")], 30, team=HOSTILE)
    found = evaluate(HOSTILE, history(nasty, job("k", 9, 1), end=40, nodes={HOSTILE: 4}))
    html = page([found, found], HOSTILE)
    reader = read(html)
    assert "script" not in reader.tags
    assert "\x07" not in html
    assert any("<script>alert" in words for words in reader.texts)
    assert any(tag == "rect" for tag in reader.tags)


def test_names_in_any_script_come_through():
    reader = read(page(two_runs(), "Übersicht · 概要"))
    assert any("größe" in words for words in reader.texts)
    assert "Übersicht · 概要" in reader.texts


def test_every_chart_says_what_it_is():
    html = page(two_runs())
    charts = re.findall(r'<svg role="img" aria-labelledby="(\w+) (\w+)"', html)
    assert len(charts) == 9  # three over time, two over jobs, two of teams, two of nodes
    for title, description in charts:
        assert html.count(f'<title id="{title}">') == html.count(f'<desc id="{description}">') == 1


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES.keys())
def test_there_is_always_a_page_and_a_table(edge):
    found = evaluate("p", edge)
    read(page([found]))
    read(page([found, found]))
    assert "jobs accepted" in shown([found])


def test_a_page_of_no_runs():
    assert "Definitions" in page([])
    assert shown([]).strip() == ""


@pytest.mark.parametrize("seed", range(10))
def test_coordinates_stay_on_the_canvas(seed):
    html = page([evaluate("one", random_history(seed)), evaluate("two", random_history(seed + 100))])
    numbers = [float(n) for path in re.findall(r' d="([^"]+)"', html) for n in re.findall(r"-?[\d.]+", path)]
    assert all(0 <= number <= 1300 for number in numbers)
    assert "nan" not in html


def test_the_chart_of_nodes_says_what_it_leaves_out():
    names = [f"n{n}" for n in range(NODES_MAX + 3)]
    jobs = [job(f"j{n}", n, 1, [run(n, n, n + 2, 1, names[n % len(names)])], n + 2) for n in range(BOXES_MAX + 200)]
    result = evaluate("p", history(*jobs, end=BOXES_MAX + 300, nodes=dict.fromkeys(names, 2)))
    chart = gantt(result, team_colours([result]), span([result]))
    assert f"The first {NODES_MAX} of {NODES_MAX + 3} nodes" in chart.description
    drawn = chart.canvas.svg(1, "", "").count("<rect")
    assert drawn <= BOXES_MAX
    assert f"{drawn:,}" in chart.description


# ---- files ---------------------------------------------------------------------------------------------------------


def test_the_json_file_reads_back():
    results = two_runs()
    found = msgspec.json.decode(measures_json(results), type=MeasuresFile)
    assert found.format == 1
    assert [(one.policy, one.measures) for one in found.runs] == [(one.policy, one.measures) for one in results]


def jobs_of(found: History) -> list[dict[str, str]]:
    out = io.StringIO()
    write_jobs(found, out)
    return list(csv.DictReader(io.StringIO(out.getvalue())))


def test_the_jobs_file_has_a_line_a_job():
    preempted = [run(10, 15, 35, 2, cause="reclaim", lost_gpu_s=10), run(50, 52, 82, 2, "a2", attempt=2)]
    lines = jobs_of(history(job("b", 3, 1), job("a", 0, 2, preempted, 82), end=100))
    assert tuple(lines[0]) == JOB_COLUMNS
    first, second = lines
    assert first == {
        "id": "a", "team": "team", "user": "ann", "gpus": "2", "outcome": "succeeded", "submit_ms": "0",
        "placed_ms": "10000", "start_ms": "15000", "end_ms": "82000", "waited_ms": "10000", "in_line_ms": "25000",
        "held_ms": "57000", "kept_gpu_ms": "90000", "lost_gpu_ms": "10000", "runs": "2", "preemptions": "1",
        "evictions": "0", "failures": "0", "nodes": "a1 a2",
    }  # fmt: skip
    assert (second["id"], second["placed_ms"], second["end_ms"], second["in_line_ms"]) == ("b", "", "", "97000")


def test_no_name_becomes_a_formula_in_a_spreadsheet():
    (line,) = jobs_of(history(job('=HYPERLINK("x")', 0, 1, team="@a,\nb"), end=1))
    assert (line["id"], line["team"]) == ('\'=HYPERLINK("x")', "'@a,\nb")


# ---- words and axes ------------------------------------------------------------------------------------------------


def test_durations_and_shares_are_short():
    assert [duration(ms) for ms in (0, 850.4, 1_500, 90_000, 3_600_000, 1_234_567_890.1)] == [
        "0s", "850ms", "1s", "1m30s", "1h", "14d6h",
    ]  # fmt: skip
    assert (duration(None), share(None), share(0.1234)) == ("–", "–", "12.3 %")


def test_text_is_escaped_and_has_no_control_characters():
    assert text("<a href='x'>&\x00") == "&lt;a href=&#x27;x&#x27;&gt;&amp;\N{REPLACEMENT CHARACTER}"


def test_axes_have_round_ticks():
    assert [label for _, label in amount_axis(7.3).ticks] == ["0", "2", "4", "6", "8"]
    assert [label for _, label in amount_axis(0).ticks] == ["0", "1"]
    assert [label for _, label in time_axis(5_000, 5_000 + 3 * 3_600_000).ticks][:3] == ["0s", "30m", "1h"]
    assert [label for _, label in time_axis(0, 20 * 86_400_000).ticks][-1] == "20d"
    assert [label for _, label in log_time_axis(4_000_000).ticks] == ["1s", "10s", "1m", "10m", "1h", "10h"]


def test_no_word_of_the_page_itself_is_a_letter_that_cannot_be_shown():
    assert "\N{REPLACEMENT CHARACTER}" not in page(two_runs())
