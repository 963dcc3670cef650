"""How ``onsite`` and what it is to do travel to a machine: as bytes for the standard input of a Python there.

The words that begin it are always the same, and nothing that anybody wrote is part of them.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from corral.backends.carriers.wheels import Agent

#: For ``python -I -S -c``.
FIRST_WORDS = (
    'import sys; i = sys.stdin.buffer; exec(compile(i.read(int(i.readline())), "onsite", "exec"), '
    '{"__name__": "__main__"})'
)


@cache
def program() -> bytes:
    return resources.files("corral.backends.carriers").joinpath("onsite.py").read_bytes()


def sent(request: dict[str, Any], body: bytes = b"") -> bytes:
    """What a Python with those first words reads."""
    return b"%d\n%s%s\n%s" % (len(program()), program(), json.dumps(request).encode(), body)


def installing(agent: Agent) -> tuple[dict[str, Any], bytes]:
    """The request, and the wheels that follow it."""
    bodies = [wheel.body for wheel in agent.wheels]
    sizes = [(len(body), hashlib.sha256(body).hexdigest()) for body in bodies]
    return {"act": "install", "agent": agent.mark, "wheels": sizes}, b"".join(bodies)


def answer_in(output: bytes) -> dict[str, Any] | None:
    """The last line: a shell may greet whoever comes. None: there is no answer."""
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
