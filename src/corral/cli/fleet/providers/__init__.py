"""Options of each provider on the command line: one module per provider, with `OPTIONS` and ``settings``.

``OPTIONS``: click options for ``corral fleet up``; those of several providers are in ``pilots``. ``NAMES``: the
parameters of the provider. ``settings(given)``: from the parameters that were given to the provider's settings.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

KINDS = {
    "command": "corral.cli.fleet.providers.command",
    "ray": "corral.cli.fleet.providers.ray",
    "slurm": "corral.cli.fleet.providers.slurm",
    "ssh": "corral.cli.fleet.providers.ssh",
}


def module_of(kind: str) -> Any:
    return import_module(KINDS[kind])
