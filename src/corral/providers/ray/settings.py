"""The settings of a fleet on a Ray cluster, and their validation."""

from __future__ import annotations

import re

from msgspec import Struct, field

#: What operators may choose. Not the address: a client of a Ray head executes what the head sends.
PLAIN = frozenset({"labels", "has_head", "path", "fake_gpus", "grace_ms"})
_ADDRESS = re.compile(r"(?:ray://)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}")
_PLACE = re.compile(r"(?:~?/)?[A-Za-z0-9_@+.{][A-Za-z0-9_@+./{}-]*")


class RaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``address``: of Ray's head: HOST:PORT if the server's machine is itself a Ray node, else ray://HOST:PORT.
    ``python``: of the environment with Ray on the server's machine; empty: the server's own. ``token_file``: a file of
    the server with the token of the cluster. ``is_open``: the cluster has no token, so anyone who reaches it may do
    anything. ``labels``: use only nodes that have them. ``has_head``: also use the head node.

    ``agent_python``: on the nodes, to run agents with; empty: the one that runs Ray there. ``folder``: the directory on
    the nodes; it may contain labels of the node in braces. ``path``: labels that give the place of a node, one for each
    level of the topology. ``wheels``, ``ca``: as for SSH."""

    address: str
    python: str = ""
    token_file: str = ""
    is_open: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    has_head: bool = False
    agent_python: str = ""
    folder: str = ""
    path: tuple[str, ...] = ()
    fake_gpus: str = ""
    wheels: str = ""
    ca: str = ""
    grace_ms: int = 30_000

    def fault(self) -> str:
        if not _ADDRESS.fullmatch(self.address):
            return f"{self.address[:100]!r} is not the address of a Ray head: write HOST:PORT or ray://HOST:PORT"
        if not self.token_file and not self.is_open:
            return (
                "token_file is missing. Start Ray with RAY_AUTH_MODE=token and name the file with its token; or set "
                "is_open if anyone who reaches this cluster may do anything with it"
            )
        if self.token_file and self.is_open:
            return "token_file and is_open exclude each other"
        if self.folder and not _PLACE.fullmatch(self.folder):
            return f"{self.folder[:100]!r} is not a directory for the agent: use letters, digits and ._@+-/{{}} only"
        texts = (self.python, self.token_file, self.agent_python, self.fake_gpus, *self.path)
        if not all(map(str.isprintable, texts)):
            return "a text contains control characters"
        return "" if 0 <= self.grace_ms <= 86_400_000 else "grace must be from 0 to 24 h"
