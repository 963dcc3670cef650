"""``corral sim policies``: list the policies, one sentence each."""

from __future__ import annotations

import json

import rich_click as click

SENTENCES = {
    "standard": "Guaranteed queues first, then priority, fair share and age; preempts for guarantees and priority.",
    "fair": "The queue with the least usage relative to its share first; no preemption.",
    "priority": "Highest priority first; preempts lower priorities.",
    "fifo": "In order of arrival; any job that fits may start before one that does not.",
    "conservative": "In order of arrival; every job has a reservation that later jobs cannot delay.",
    "strict_fifo": "In order of arrival; no job starts before an earlier one.",
    "sjf": "The shortest expected job first; no preemption.",
    "srtf": "The least remaining time first; preempts jobs with more.",
    "srsf": "The least remaining GPU time first; preempts jobs with more.",
    "srtf_moving": "The least remaining time first; gangs may be moved so that the next one fits.",
    "srsf_moving": "The least remaining GPU time first; gangs may be moved so that the next one fits.",
    "las": "The job with the least GPU time so far first; time sharing that needs no run times.",
    "las_by_time": "The job with the least run time so far first, of any size; time sharing.",
    "best_fit": "In order of arrival, each on the node with the least room left.",
    "fgd": "In order of arrival, each on the node where it causes the least fragmentation.",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def policies(as_json: bool) -> None:
    """List the policies."""
    from corral.sim.research.published import POLICIES

    names = sorted(POLICIES, key=lambda name: list(SENTENCES).index(name) if name in SENTENCES else len(SENTENCES))
    sentences = {name: SENTENCES.get(name, "") for name in names}
    if as_json:
        click.echo(json.dumps(sentences, indent=2))
        return
    width = max(map(len, sentences))
    for name, sentence in sentences.items():
        click.echo(f"{name:{width}}  {sentence}".rstrip())
