"""``corral sim list``: which workloads there are."""

from __future__ import annotations

import json

import rich_click as click

from corral.cli.sim.options import traces_option


@click.command("list")
@traces_option
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
def list_workloads(traces: str | None, as_json: bool) -> None:
    """List the workloads by name: those that come with Corral, and those of the folder of public traces."""
    from corral.cli.sim.question import complaining
    from corral.sim.traces.catalog import list_traces

    with complaining():
        names = list_traces(traces or None)
    click.echo(json.dumps(names, indent=2) if as_json else "\n".join(names))
    if not traces and not as_json:
        click.echo("note: --traces FOLDER or CORRAL_TRACES adds public traces; csv:PATH is a table of yours", err=True)
