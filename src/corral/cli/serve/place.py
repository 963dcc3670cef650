"""Where a server of this machine keeps its data, and what it says about itself there.

Knows paths and one small file. Reads; the server writes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

SERVER_FILE, LOG_FILE = "server.json", "server.log"

data_option = click.option(
    "--data", metavar="FOLDER", default=None, envvar="CORRAL_DATA", show_envvar=True,
    help="Where the server keeps everything.",
)  # fmt: skip

database_option = click.option(
    "--database", metavar="ADDRESS", default=None, envvar="CORRAL_DATABASE", show_envvar=True,
    help="A PostgreSQL database instead of a file there: postgresql://user@host/name.",
)  # fmt: skip


def data_folder(stated: str | None) -> Path:
    if stated:
        return Path(stated).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/corral")
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "corral"


@dataclass(frozen=True)
class Here:
    """A server that runs on this machine."""

    url: str
    pid: int
    started_ms: int
    waits_for: str = ""  # what keeps it from being in service


def running_server(folder: Path) -> Here | None:
    """The server that has this folder, if it is alive. A file that a killed one left behind counts for nothing."""
    try:
        told = json.loads((folder / SERVER_FILE).read_bytes())
        here = Here(str(told["url"]), int(told["pid"]), int(told["started_ms"]), str(told.get("waits_for", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return here if is_server(here.pid) else None


def is_server(pid: int) -> bool:
    """Whether the process is there and is Corral's: numbers of processes are given again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and any(b"corral" in word for word in words)
