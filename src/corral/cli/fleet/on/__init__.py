"""What can be said about each carrier on the command line: one module a kind, with `OPTIONS` and ``settings``.

``OPTIONS``: options of click for ``corral fleet up``; what several kinds understand is in ``pilots``. ``NAMES``: the
parameters that the kind understands. ``settings(given)``: from those that were given to the settings of the carrier.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

KINDS = {
    "command": "corral.cli.fleet.on.command",
    "ray": "corral.cli.fleet.on.ray",
    "slurm": "corral.cli.fleet.on.slurm",
    "ssh": "corral.cli.fleet.on.ssh",
}


def module_of(kind: str) -> Any:
    return import_module(KINDS[kind])
