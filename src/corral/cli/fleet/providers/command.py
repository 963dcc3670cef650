"""Options of a site's own commands as a provider: ``corral fleet up --on command``."""

from __future__ import annotations

import shlex
from typing import Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.fleet.providers.pilots import Option

_PANEL = "On command"
_COMMANDS = ("acquire", "release", "look")

OPTIONS: tuple[Option, ...] = (
    click.option("--acquire", metavar="COMMAND", help="Command that provides a machine.", panel=_PANEL),
    click.option("--release", metavar="COMMAND", help="Command that gives a machine back.", panel=_PANEL),
    click.option("--look", metavar="COMMAND", help="Command that lists the machines.", panel=_PANEL),
)
NAMES = frozenset(_COMMANDS)


def settings(given: dict[str, Any]) -> dict[str, Any]:
    absent = [name for name in _COMMANDS if name not in given]
    if absent:
        raise Complaint(f"--on command needs --{absent[0]}", "what it must do: docs/operate/following-demand.md")
    return {name: shlex.split(given[name]) for name in _COMMANDS}
