"""What a fleet says about the Ray cluster that carries it. Values, and what is wrong with them."""

from __future__ import annotations

import re

from msgspec import Struct, field

#: What operators may choose. Not the address: whoever speaks with a head of Ray executes what that one sends.
PLAIN = frozenset({"labels", "has_head", "path", "fake_gpus", "grace_ms"})
_ADDRESS = re.compile(r"(?:ray://)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}")
_PLACE = re.compile(r"(?:~?/)?[A-Za-z0-9_@+.{][A-Za-z0-9_@+./{}-]*")


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``address``: of Ray's head, as HOST:PORT where the server's machine is itself a node of Ray, else
    ray://HOST:PORT. ``python``: of the environment on the server's machine that has Ray; empty: the server's own.
    ``token_file``: of the server, with the token of the cluster; ``is_open``: the cluster has none, and whoever reaches
    it may do anything. ``labels``: only nodes that have them. ``has_head``: also the node of the head.

    ``agent_python``: on the nodes, to run agents with; empty: the one that Ray runs with there. ``folder``: where
    everything lies on the nodes; a label of the node may stand in it in braces. ``path``: labels of a node that tell
    where it stands, one for each level of the topology. ``wheels``, ``ca``: as over SSH."""

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
            return f"{self.address[:100]!r} is not the address of a head of Ray: write HOST:PORT or ray://HOST:PORT"
        if not self.token_file and not self.is_open:
            return (
                "there is no token_file. Start Ray with RAY_AUTH_MODE=token and say where its token is; or say is_open "
                "if anybody who reaches this cluster may do with it what they like"
            )
        if self.token_file and self.is_open:
            return "token_file and is_open exclude each other"
        if self.folder and not _PLACE.fullmatch(self.folder):
            return f"{self.folder[:100]!r} is not a folder for the agent: letters, digits and ._@+-/{{}} only"
        texts = (self.python, self.token_file, self.agent_python, self.fake_gpus, *self.path)
        if not all(map(str.isprintable, texts)):
            return "a text contains control characters"
        return "" if 0 <= self.grace_ms <= 86_400_000 else "grace must be from nothing to a day"
