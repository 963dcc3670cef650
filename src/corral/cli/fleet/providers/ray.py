"""Options of Ray: ``corral fleet up --on ray --address HOST:PORT``."""

from __future__ import annotations

import os
from typing import Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.fleet.providers.pilots import Option, pilot_settings

_PANEL = "On Ray"

OPTIONS: tuple[Option, ...] = (
    click.option("--address", metavar="HOST:PORT", help="Address of Ray's head node.", panel=_PANEL),
    click.option("--ray-token", metavar="FILE", panel=_PANEL, help="Token file of the Ray cluster, on the server."),
    click.option("--ray-open", is_flag=True, default=None, help="The Ray cluster needs no token.", panel=_PANEL),
    click.option(
        "--ray-python",
        metavar="PATH",
        panel=_PANEL,
        help="Python on the server that has Ray; default: the server's own.",
    ),
    click.option(
        "--agent-python",
        metavar="PATH",
        panel=_PANEL,
        help="Python 3.11 or newer on the nodes, for agents; default: Ray's own.",
    ),
    click.option(
        "--label", "labels", metavar="NAME=VALUE", multiple=True, help="Use only nodes with this label.", panel=_PANEL
    ),
    click.option(
        "--path-label",
        "path_labels",
        metavar="NAME",
        multiple=True,
        panel=_PANEL,
        help="Label with the domain of a node; one for each topology level.",
    ),
    click.option("--with-head", is_flag=True, default=None, help="Also use the head node.", panel=_PANEL),
)

NAMES = frozenset(
    {"address", "ray_token", "ray_open", "ray_python", "agent_python", "labels", "path_labels", "with_head", "folder",
     "fake_gpus", "grace"}
)  # fmt: skip


def settings(given: dict[str, Any]) -> dict[str, Any]:
    if "address" not in given:
        raise Complaint("--on ray needs the address of the head node", "give --address HOST:PORT")
    labels = dict(_pair(text) for text in given.get("labels", ()))
    renamed = {"ray_open": "is_open", "ray_python": "python", "with_head": "has_head"}
    plain = ("address", "ray_open", "ray_python", "agent_python", "with_head")
    found = {renamed.get(name, name): given[name] for name in plain if given.get(name)}
    found |= {"token_file": os.path.abspath(given["ray_token"])} if "ray_token" in given else {}
    found |= {"labels": labels} if labels else {}
    found |= {"path": list(given["path_labels"])} if given.get("path_labels") else {}
    return found | pilot_settings(given)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Complaint(f"--label cannot be {text!r}", "write it like --label pool=training")
    return name, value
