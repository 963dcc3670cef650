"""The data directory of the agent on this machine. Knows one path."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click

agent_data_option = click.option(
    "--data",
    metavar="FOLDER",
    envvar="CORRAL_AGENT_DATA",
    show_envvar=True,
    help="Data folder of the agent: credential, tasks and logs.",
)


def agent_folder(stated: str | None) -> Path:
    if stated:
        return Path(stated).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/corral-agent")
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "corral-agent"
