"""The listening socket for agents: its port stays the same from one server to the next.

Knows sockets and a small file in the data folder. Agents that lost their server first try the port that they know, so
the next server should use the same one.
"""

from __future__ import annotations

import errno
import socket
import time
from pathlib import Path

from corral.io.files import write_file

PORT_FILE = "agent-port"
_BACKLOG = 4096
_TAKEN_S = 3.0  # the gateway of a killed server may hold the port for this long


class PortTaken(Exception):
    """Another program listens on the port."""


def bound_for_agents(host: str, port: int | None, usual: int, folder: Path) -> socket.socket:
    """Listen on exactly this port; None: on the last or the usual one or, if that is taken, on any other port, which is
    saved."""
    if port:
        return _bound(host, port, is_any=False)
    kept, usual = _kept(folder), usual if port is None and usual <= 65_535 else 0
    place = _bound(host, kept or usual, is_any=True)
    if (found := place.getsockname()[1]) != (kept or usual):
        write_file(folder / PORT_FILE, b"%d\n" % found)
    return place


def _bound(host: str, port: int, *, is_any: bool) -> socket.socket:
    end = time.monotonic() + _TAKEN_S
    while True:
        place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((host, port))
            place.listen(_BACKLOG)
            return place
        except OSError as wrong:
            place.close()
            if wrong.errno != errno.EADDRINUSE or (time.monotonic() > end and not is_any):
                raise PortTaken(f"cannot listen for agents on {host}:{port}: {wrong.strerror}") from None
        if time.monotonic() > end:
            port = 0
        time.sleep(0.05)


def _kept(folder: Path) -> int:
    """The saved port; 0 if there is none."""
    try:
        kept = int((folder / PORT_FILE).read_bytes())
    except (OSError, ValueError):
        return 0
    return kept if 0 < kept <= 65_535 else 0
