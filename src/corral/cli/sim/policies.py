"""``corral sim policies``: which policies there are, a sentence each."""

from __future__ import annotations

import json

import rich_click as click

SENTENCES = {
    "standard": "Owners first, then priority, fair share and age; makes room for whoever has a right to it.",
    "fair": "Whoever has had the least of its share is next; nobody has to leave.",
    "priority": "The highest priority first; lower ones make room.",
    "fifo": "In order of arrival; whatever fits may pass what does not.",
    "conservative": "In order of arrival; everyone is promised a start, which nobody who comes later delays.",
    "strict_fifo": "In order of arrival; nobody passes anyone.",
    "sjf": "The shortest expected job first; nobody has to leave.",
    "srtf": "The least remaining time first; whoever has more left makes room.",
    "srsf": "The least remaining GPU time first; whoever has more left makes room.",
    "srtf_moving": "The least remaining time first; gangs may be moved so that the next one fits.",
    "srsf_moving": "The least remaining GPU time first; gangs may be moved so that the next one fits.",
    "las": "Whoever has received the least GPU time first; takes turns without knowing any length.",
    "las_by_time": "Whoever has run for the least time first, whatever its size; takes turns.",
    "best_fit": "In order of arrival, each on the node that it leaves the fullest.",
    "fgd": "In order of arrival, each on the node where it leaves the least fragmentation.",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
def policies(as_json: bool) -> None:
    """List the policies by name, with what each does."""
    from corral.policy.catalog import CATALOG

    names = sorted(CATALOG, key=lambda name: list(SENTENCES).index(name) if name in SENTENCES else len(SENTENCES))
    told = {name: SENTENCES.get(name, "") for name in names}
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    width = max(map(len, told))
    for name, sentence in told.items():
        click.echo(f"{name:{width}}  {sentence}".rstrip())
