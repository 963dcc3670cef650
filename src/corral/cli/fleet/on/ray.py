"""What can be said about Ray: ``corral fleet up --on ray --address HOST:PORT``."""

from __future__ import annotations

import os
from typing import Any

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.fleet.on.pilots import Option, pilot_settings

_PANEL = "On Ray"

OPTIONS: tuple[Option, ...] = (
    click.option("--address", metavar="HOST:PORT", default=None, help="Of Ray's head.", panel=_PANEL),
    click.option(
        "--ray-token", metavar="FILE", default=None, panel=_PANEL, help="On the server: the token of the cluster."
    ),
    click.option("--ray-open", is_flag=True, default=None, help="The cluster asks for no token.", panel=_PANEL),
    click.option(
        "--ray-python", metavar="PATH", default=None, panel=_PANEL,
        help="On the server: the Python of the environment that has Ray; otherwise the server's own.",
    ),
    click.option(
        "--agent-python", metavar="PATH", default=None, panel=_PANEL,
        help="On the nodes: a Python for agents, 3.11 or newer; otherwise Ray's own.",
    ),
    click.option(
        "--label", "labels", metavar="NAME=VALUE", multiple=True, help="Only nodes that have it.", panel=_PANEL
    ),
    click.option(
        "--path-label", "path_labels", metavar="NAME", multiple=True, panel=_PANEL,
        help="A label that tells where a node stands: one for each level of the topology.",
    ),
    click.option("--with-head", is_flag=True, default=None, help="Also the node of the head.", panel=_PANEL),
)  # fmt: skip

NAMES = frozenset(
    {"address", "ray_token", "ray_open", "ray_python", "agent_python", "labels", "path_labels", "with_head", "folder",
     "fake_gpus", "grace"}
)  # fmt: skip


def settings(given: dict[str, Any]) -> dict[str, Any]:
    if "address" not in given:
        raise Complaint("--on ray needs to know where the head is", "say --address HOST:PORT")
    labels = dict(_pair(said) for said in given.get("labels", ()))
    renamed = {"ray_open": "is_open", "ray_python": "python", "with_head": "has_head"}
    plain = ("address", "ray_open", "ray_python", "agent_python", "with_head")
    found = {renamed.get(name, name): given[name] for name in plain if given.get(name)}
    found |= {"token_file": os.path.abspath(given["ray_token"])} if "ray_token" in given else {}
    found |= {"labels": labels} if labels else {}
    found |= {"path": list(given["path_labels"])} if given.get("path_labels") else {}
    return found | pilot_settings(given)


def _pair(said: str) -> tuple[str, str]:
    name, equals, value = said.partition("=")
    if not (name and equals):
        raise Complaint(f"--label cannot be {said!r}", "write it like --label pool=training")
    return name, value
