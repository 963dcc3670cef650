"""``corral map``: every GPU of the cluster as one character, by its place in the topology."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.render import print_line, print_note, style, terminal_columns, write_json
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.live import NodeCell, TopologyView

#: The letter of the API -> what is shown, and its colour. Each is told apart without colour.
_SHOWN = {
    "r": ("█", "blue", "running"),
    "h": ("▒", "cyan", "held"),
    "f": ("·", "", "free"),
    "c": ("-", "yellow", "closed"),
    "s": ("x", "red", "sick"),
    "l": ("!", "red", "lost"),
}


@click.command("map")
@click.option("--node", "-n", metavar="TEXT", default="", help="Only nodes whose name has this text in it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show_map(node: str, as_json: bool) -> None:
    """Show every GPU as one character, by its place in the topology: running, held, free, closed, sick or lost."""
    with connected() as client:
        found = client.topology()
    if as_json:
        write_json(found)
        return
    cells = [cell for cell in found.nodes if node.lower() in cell.name.lower()]
    if not cells:
        print_note("no nodes" if not node else f"no node has {node!r} in its name")
        return
    for path, group in groupby(cells, key=lambda cell: cell.path):
        _print_group(found, path, list(group))
    letters = "".join(cell.gpus for cell in cells)
    legend = [f"{sign(letter)} {letters.count(letter)} {word}" for letter, (_, _, word) in _SHOWN.items()]
    print_line("  ".join(legend))


def _print_group(found: TopologyView, path: tuple[str, ...], cells: list[NodeCell]) -> None:
    where = "  ".join(f"{level} {name}" for level, name in zip(found.levels, path, strict=False))
    if where:
        print_line(style(where, bold=True))
    width = max(len(cell.name) for cell in cells)
    gpus = max(len(cell.gpus) for cell in cells)
    columns = terminal_columns(sys.stdout) if sys.stdout.isatty() else 0  # elsewhere one node per line
    per_line = max(1, columns // (width + gpus + 4))
    for at in range(0, len(cells), per_line):
        shown = [f"{cell.name:<{width}} {_signs(cell, gpus)}" for cell in cells[at : at + per_line]]
        print_line("   ".join(shown).rstrip())
    print_line()


def _signs(cell: NodeCell, width: int) -> str:
    return "".join(map(sign, cell.gpus)) + " " * (width - len(cell.gpus))


def sign(letter: str) -> str:
    text, colour, _ = _SHOWN.get(letter, ("?", "", ""))
    return style(text, fg=colour) if colour else text
