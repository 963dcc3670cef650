"""``corral sim run``: simulate one workload under one policy."""

from __future__ import annotations

from typing import Any

import rich_click as click

from corral.cli.sim.options import Asked, asked_option, simulation_options


@click.command()
@asked_option("--policy", metavar="NAME", default="standard", show_default=True, help="See: corral sim policies.")
@simulation_options
def run(**given: Any) -> int:
    """Simulate a workload under one policy and report the results.

    For example: corral sim run --trace synthetic:lab --html report.html
    """
    from corral.cli.sim.execute import answer

    return answer(Asked(**given), (given["policy"],))
