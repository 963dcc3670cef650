"""What can be said about commands of one's own: ``corral fleet up --on command``."""

from __future__ import annotations

import shlex
from typing import Any

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.fleet.on.pilots import Option

_PANEL = "On command"
_COMMANDS = ("acquire", "release", "look")

OPTIONS: tuple[Option, ...] = (
    click.option("--acquire", metavar="COMMAND", default=None, help="Gives a machine.", panel=_PANEL),
    click.option("--release", metavar="COMMAND", default=None, help="Takes it back.", panel=_PANEL),
    click.option("--look", metavar="COMMAND", default=None, help="Says what there is.", panel=_PANEL),
)
NAMES = frozenset(_COMMANDS)


def settings(given: dict[str, Any]) -> dict[str, Any]:
    absent = [name for name in _COMMANDS if name not in given]
    if absent:
        raise Complaint(f"--on command needs --{absent[0]}", "docs/operate/following-demand.md says what it must do")
    return {name: shlex.split(given[name]) for name in _COMMANDS}
