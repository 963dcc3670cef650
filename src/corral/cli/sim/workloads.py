"""``corral sim list``: list the workloads."""

from __future__ import annotations

import json

import rich_click as click

from corral.cli.sim.options import traces_option


@click.command("list")
@traces_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_workloads(traces: str | None, as_json: bool) -> None:
    """List the workloads: those that come with Corral, and those in the folder of public traces."""
    from corral.cli.sim.scenario import complaining
    from corral.sim.traces.catalog import list_traces

    with complaining():
        names = list_traces(traces or None)
    click.echo(json.dumps(names, indent=2) if as_json else "\n".join(names))
    if not traces and not as_json:
        click.echo("note: --traces FOLDER or CORRAL_TRACES adds public traces; csv:PATH is your own table", err=True)
