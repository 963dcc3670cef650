"""Encodes ``bootstrap`` and a request as bytes for the standard input of a Python on another machine.

The command line of that Python is always the same: no user input is part of it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from corral.providers.bootstrap.bundle import AgentBundle
from corral.providers.bootstrap.host_messages import HostRequest, InstallRequest, encode

#: For ``python -I -S -c``.
FIRST_WORDS = (
    'import sys; i = sys.stdin.buffer; exec(compile(i.read(int(i.readline())), "bootstrap", "exec"), '
    '{"__name__": "__main__"})'
)


@cache
def program() -> bytes:
    return resources.files("corral.providers.bootstrap").joinpath("bootstrap.py").read_bytes()


def payload(request: HostRequest, folder: str, body: bytes = b"") -> bytes:
    """The input of a Python with that command line. ``body``: what follows the request."""
    return b"%d\n%s%s\n%s" % (len(program()), program(), encode(request, folder), body)


def install_request(agent: AgentBundle) -> tuple[InstallRequest, bytes]:
    """The request, and the wheels that follow it."""
    bodies = [wheel.body for wheel in agent.wheels]
    wheels = tuple((len(body), hashlib.sha256(body).hexdigest()) for body in bodies)
    return InstallRequest(agent.mark, wheels), b"".join(bodies)
