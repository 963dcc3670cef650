"""What a fleet says about its hosts. Values, and what is wrong with them.

Host, user and the rest become words of a command: what could be taken for an option, or for more than one word, is
refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

#: What operators may choose. Not the hosts: the server logs in there with its own key.
PLAIN = frozenset({"grace_ms"})
HOSTS_MAX = 1_000
PORT = 22

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,39}")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}\$?")
_PLACE = re.compile(r"(?:~?/)?[A-Za-z0-9_@+.][A-Za-z0-9_@+./-]*")
_PYTHON = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./+-]*")


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One machine. What is empty is as for all. ``path``: where it stands, a name for each level of the topology."""

    host: str
    port: int = 0
    user: str = ""
    python: str = ""
    folder: str = ""
    path: str = ""
    fake_gpus: str = ""

    @property
    def key(self) -> str:
        return f"{self.host} {self.port} {self.folder}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``identity`` and ``known_hosts``: files of the server; without them, those of its account. ``accept_new``: trust
    the key of a host that was never met; a key that has changed is never trusted. ``wheels``: a folder of the server
    with wheels for machines whose Python is another than the server's. ``ca``: the certificate of the authority that
    vouches for the server, as text, where machines do not know it. ``folder``: where everything lies on the machines;
    without it /var/lib/corral-pilot of root, .local/state/corral-pilot of others."""

    hosts: tuple[Host, ...]
    user: str = ""
    port: int = 0
    python: str = "python3"
    folder: str = ""
    identity: str = ""
    known_hosts: str = ""
    accept_new: bool = False
    wheels: str = ""
    ca: str = ""
    grace_ms: int = 30_000

    def fault(self) -> str:
        if not 1 <= len(self.hosts) <= HOSTS_MAX:
            return f"there must be 1 to {HOSTS_MAX} hosts, not {len(self.hosts)}"
        known: set[tuple[str, int, str]] = set()
        for host in map(self.whole, self.hosts):
            key = (host.host, host.port, host.folder)
            if key in known:
                return f"{host} is there twice; one machine has one agent"
            known.add(key)
        if not 0 <= self.grace_ms <= 86_400_000:
            return "grace must be from nothing to a day"
        return next(self._faults(), "")

    def _faults(self) -> Iterator[str]:
        for host in map(self.whole, self.hosts):
            if not _HOST.fullmatch(host.host):
                yield f"{host.host[:100]!r} is not the name or address of a host"
            if host.user and not _USER.fullmatch(host.user):
                yield f"{host.user[:100]!r} is not the name of a user"
            if not 1 <= host.port <= 65_535:
                yield f"{host.port} is not a port"
            if not _PYTHON.fullmatch(host.python):
                yield f"{host.python[:100]!r} is not the name or path of a Python"
            if not all(map(str.isprintable, (host.path, host.fake_gpus))):
                yield f"{host}: path and fake_gpus are words, without control characters"
            if host.folder and not _PLACE.fullmatch(host.folder):
                yield f"{host.folder[:100]!r} is not a folder for the agent: letters, digits and ._@+-/ only"
        for name in ("identity", "known_hosts", "wheels"):
            said = getattr(self, name)
            if "\0" in said or "\n" in said or '"' in said or "%" in said:
                yield f"{name}: {said[:100]!r} cannot be the path of a file here"

    def whole(self, host: Host) -> Host:
        """With what is said for all."""
        return Host(
            host=host.host, port=host.port or self.port or PORT, user=host.user or self.user,
            python=host.python or self.python, folder=host.folder or self.folder, path=host.path,
            fake_gpus=host.fake_gpus,
        )  # fmt: skip
