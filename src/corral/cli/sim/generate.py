"""``corral sim generate``: a workload drawn from a description, as a table."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from corral.cli.errors import Complaint


@click.command()
@click.argument("description", metavar="FILE.yaml")
@click.option("--out", metavar="FILE.csv", required=True, help="File to write.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed to use instead of the description's.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing.")
def generate(description: str, out: str, seed: int | None, force: bool, quiet: bool) -> None:
    """Generate a workload from a description. The same seed gives the same jobs.

    For example: corral sim generate examples/workloads/two_teams.yaml --out jobs.csv
    """
    from corral.cli.sim.reports import check_writable
    from corral.cli.sim.scenario import complaining, nodes_text
    from corral.sim.traces.corral_csv import write_table
    from corral.sim.traces.generate import generate as draw

    path = Path(out)
    check_writable("--out", path)
    if path.exists() and not force:
        raise Complaint(f"{out} exists already", "choose another name, or give --force to overwrite it")
    with complaining():
        trace = draw(Path(description), "synthetic", seed)
        write_table(trace, path)
    if not quiet:
        machines = f" --nodes {nodes_text(trace.nodes)}" if trace.nodes else " --nodes 8x8"
        click.echo(f"{len(trace.jobs):,} jobs in {out}", err=True)
        click.echo(f"next: corral sim run --trace csv:{out}{machines}", err=True)
