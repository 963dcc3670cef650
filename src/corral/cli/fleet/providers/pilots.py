"""Options of several providers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rich_click as click

from corral.cli.option_types import Span

Option = Callable[[Any], Any]

OPTIONS: tuple[Option, ...] = (
    click.option(
        "--corral",
        metavar="COMMAND",
        help="Command that starts corral on the nodes; default: as on the server.",
    ),
    click.option("--folder", metavar="PATH", help="Data folder of the agents on the nodes."),
    click.option("--fake-gpus", metavar="8xH100", help="Simulate these GPUs on the nodes."),
    click.option(
        "--grace",
        type=Span(),
        metavar="TIME",
        help="Time for jobs to save and stop before a node is given back.",
    ),
)


def pilot_settings(given: dict[str, Any]) -> dict[str, Any]:
    import shlex

    renamed = {"grace": "grace_ms"}
    found = {renamed.get(name, name): given[name] for name in ("folder", "fake_gpus", "grace") if name in given}
    return found | ({"corral": shlex.split(given["corral"])} if "corral" in given else {})
