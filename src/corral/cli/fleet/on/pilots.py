"""Options that several carriers understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rich_click as click

from corral.cli.words import Span

Option = Callable[[Any], Any]

OPTIONS: tuple[Option, ...] = (
    click.option(
        "--corral", metavar="COMMAND", default=None, help="How the nodes call this program; otherwise as here."
    ),
    click.option("--folder", metavar="PATH", default=None, help="Where pilots keep their data on the nodes."),
    click.option("--fake-gpus", metavar="8xH100", default=None, help="Simulated GPUs instead of those of the nodes."),
    click.option(
        "--grace", type=Span(), metavar="TIME", default=None, help="For work to leave a node that is taken away."
    ),
)


def pilot_settings(given: dict[str, Any]) -> dict[str, Any]:
    import shlex

    renamed = {"grace": "grace_ms"}
    found = {renamed.get(name, name): given[name] for name in ("folder", "fake_gpus", "grace") if name in given}
    return found | ({"corral": shlex.split(given["corral"])} if "corral" in given else {})
