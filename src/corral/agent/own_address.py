"""The address at which other machines reach this one: the local address of the route to the server.

Asks the kernel for the route; sends nothing. Knows sockets and URLs.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit


def own_address(urls: Sequence[str]) -> str:
    """The local address of the route to the first server that can be routed to. Empty: there is none."""
    for url in urls:
        with suppress(OSError, ValueError):
            parts = urlsplit(url)
            if not parts.hostname:
                continue
            for family, kind, _, _, target in socket.getaddrinfo(
                parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
            ):
                with suppress(OSError), socket.socket(family, kind) as probe:
                    probe.connect(target)
                    return str(probe.getsockname()[0])
    return ""
