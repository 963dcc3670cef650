"""The data directory of a server on this machine, and the file in it that describes the running server.

Knows paths and one small file. Reads; the server writes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

_REMEMBERED = "data-folder"  # a file beside the credentials
SERVER_FILE, LOG_FILE = "server.json", "server.log"

data_option = click.option(
    "--data",
    metavar="FOLDER",
    default=None,
    envvar="CORRAL_DATA",
    show_envvar=True,
    help="Data folder of the server.",
)

database_option = click.option(
    "--database",
    metavar="ADDRESS",
    default=None,
    envvar="CORRAL_DATABASE",
    show_envvar=True,
    help="PostgreSQL database to use instead of a file: postgresql://user@host/name.",
)


def data_folder(stated: str | None) -> Path:
    if stated:
        return Path(stated).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/corral")
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "corral"


def remember_folder(folder: Path) -> None:
    """Keep the folder that ``corral up`` uses, beside the credentials, for ``corral down``."""
    from corral.client.credentials import credentials_path
    from corral.io.files import write_file

    try:
        credentials_path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(credentials_path().with_name(_REMEMBERED), f"{folder}\n".encode())
    except OSError:
        return  # then corral down needs --data


def used_folder(stated: str | None) -> Path:
    """The folder of the server to stop: as stated; else where one runs: the usual folder, or what ``up`` used last."""
    from corral.client.credentials import credentials_path

    usual = data_folder(stated)
    if stated or running_server(usual) is not None:
        return usual
    try:
        kept = Path(credentials_path().with_name(_REMEMBERED).read_text().strip())
    except (OSError, UnicodeDecodeError):
        return usual
    return kept if kept.is_absolute() and running_server(kept) is not None else usual


def other_folders() -> list[str]:
    """Data folders in the command lines of servers of this user, for a hint."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            is_mine = path.stat().st_uid == os.geteuid()
        except OSError:
            continue
        if is_mine and "up" in words and "--data" in words[:-1] and any("corral" in word for word in words):
            found.add(words[words.index("--data") + 1])
    return sorted(found)


@dataclass(frozen=True)
class Here:
    """A server that is running on this machine."""

    url: str
    pid: int
    started_ms: int
    waits_for: str = ""  # why it is not ready yet


def running_server(folder: Path) -> Here | None:
    """The server that uses this folder, if it is running. A file left behind by a killed server is ignored."""
    try:
        stored = json.loads((folder / SERVER_FILE).read_bytes())
        here = Here(str(stored["url"]), int(stored["pid"]), int(stored["started_ms"]), str(stored.get("waits_for", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return here if is_server(here.pid) else None


def is_server(pid: int) -> bool:
    """Whether the process exists and is Corral's: process ids are reused."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and any(b"corral" in word for word in words)
