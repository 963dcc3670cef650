"""The noun ``sim`` and its commands."""

from __future__ import annotations

import rich_click as click

from corral.cli.lazy import LazyGroup

COMMANDS = {
    "run": "corral.cli.sim.run:run",
    "compare": "corral.cli.sim.compare:compare",
    "list": "corral.cli.sim.workloads:list_workloads",
    "policies": "corral.cli.sim.policies:policies",
    "generate": "corral.cli.sim.generate:generate",
    "batch": "corral.cli.sim.batch_sim:batch",
    "training": "corral.cli.sim.training:training",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def sim() -> None:
    """Simulate a workload on a cluster, under one or several policies."""
