"""``corral sim generate``: a workload drawn from a description, as a table."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from corral.cli.complaint import Complaint


@click.command()
@click.argument("description", metavar="FILE.yaml")
@click.option("--out", metavar="FILE.csv", required=True, help="Where the table goes.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", default=None, help="Another than the description's.")
@click.option("--force", is_flag=True, help="Overwrite the table if there is one.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing.")
def generate(description: str, out: str, seed: int | None, force: bool, quiet: bool) -> None:
    """Draw a workload from a description. The same seed gives the same jobs, to the byte.

    For example: corral sim generate examples/workloads/two_teams.yaml --out jobs.csv
    """
    from corral.cli.sim.question import complaining, nodes_text
    from corral.cli.sim.reports import check_writable
    from corral.sim.traces.generate import generate as draw
    from corral.sim.traces.table import write_table

    path = Path(out)
    check_writable("--out", path)
    if path.exists() and not force:
        raise Complaint(f"{out} is there already", "choose another name, or say --force to overwrite it")
    with complaining():
        trace = draw(Path(description), "synthetic", seed)
        write_table(trace, path)
    if not quiet:
        machines = f" --nodes {nodes_text(trace.nodes)}" if trace.nodes else " --nodes 8x8"
        click.echo(f"{len(trace.jobs):,} jobs in {out}", err=True)
        click.echo(f"next: corral sim run --trace csv:{out}{machines}", err=True)
