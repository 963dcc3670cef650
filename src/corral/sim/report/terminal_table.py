"""The comparison of runs for a terminal. rich decides about colours (it honours NO_COLOR)."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from corral.sim.report.comparison import Written, comparison, remarks
from corral.sim.report.result import Result
from corral.sim.report.verdict import verdict

#: Runs that fit side by side into a hundred columns; more are shown in further tables below.
ABREAST = 5
BEST = "●"


def show(results: Sequence[Result], console: Console | None = None) -> None:
    """Print the comparison."""
    (console or Console()).print(table(results))


def table(results: Sequence[Result]) -> RenderableType:
    """The verdict and what is not in the numbers, then the tables of rich: one column per run, the best marked."""
    sections = comparison(results)
    parts: list[RenderableType] = [Text(line, style="bold") for line in verdict(results)]
    parts += [Text(remark, style="yellow") for remark in remarks(results)]
    for first in range(0, len(results), ABREAST):
        shown = range(first, min(first + ABREAST, len(results)))
        parts.append(_side_by_side([results[n].policy for n in shown], sections, shown))
    if any(row.best for _, rows in sections for row in rows):
        parts.append(Text(f"{BEST} best of its row", style="dim"))
    return Group(*parts)


def _side_by_side(policies: Sequence[str], sections: Sequence[tuple[str, list[Written]]], shown: range) -> Table:
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    found.add_column("")
    for policy in policies:
        found.add_column(Text(policy), justify="right", overflow="fold")
    for title, rows in sections:
        found.add_row(Text(title, style="bold"))
        for row in rows:
            found.add_row(Text(f"  {row.label}"), *[_cell(row, n) for n in shown])
        found.add_section()
    return found


def _cell(row: Written, number: int) -> Text:
    is_best = number in row.best
    return Text(f"{row.texts[number]} {BEST if is_best else ' '}", style="bold green" if is_best else "")
