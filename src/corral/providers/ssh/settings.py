"""The settings of a fleet of SSH hosts, and their validation.

Host, user and the rest become arguments of a command: anything that could be taken for an option, or for several
arguments, is refused here.
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


class SshHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One machine. Empty fields: as for all. ``path``: its place, a name for each level of the topology."""

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


class SshSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``identity`` and ``known_hosts``: files of the server; empty: those of its account. ``accept_new``: trust the key
    of a new host; a changed key is never trusted. ``wheels``: a directory of the server with wheels for machines with
    another Python than the server. ``ca``: the certificate authority of the server, as text, if the machines do not
    know it. ``folder``: the directory on the machines; empty: /var/lib/corral-pilot for root,
    .local/state/corral-pilot for others."""

    hosts: tuple[SshHost, ...]
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
            return f"there must be from 1 to {HOSTS_MAX} hosts, not {len(self.hosts)}"
        known: set[tuple[str, int, str]] = set()
        for host in map(self.whole, self.hosts):
            key = (host.host, host.port, host.folder)
            if key in known:
                return f"{host} is listed twice; a machine can have only one agent"
            known.add(key)
        if not 0 <= self.grace_ms <= 86_400_000:
            return "grace must be from 0 to 24 h"
        return next(self._faults(), "")

    def _faults(self) -> Iterator[str]:
        for host in map(self.whole, self.hosts):
            if not _HOST.fullmatch(host.host):
                yield f"{host.host[:100]!r} is not a host name or address"
            if host.user and not _USER.fullmatch(host.user):
                yield f"{host.user[:100]!r} is not a user name"
            if not 1 <= host.port <= 65_535:
                yield f"{host.port} is not a port"
            if not _PYTHON.fullmatch(host.python):
                yield f"{host.python[:100]!r} is not the name or path of a Python interpreter"
            if not all(map(str.isprintable, (host.path, host.fake_gpus))):
                yield f"{host}: path and fake_gpus must not contain control characters"
            if host.folder and not _PLACE.fullmatch(host.folder):
                yield f"{host.folder[:100]!r} is not a directory for the agent: use letters, digits and ._@+-/ only"
        for name in ("identity", "known_hosts", "wheels"):
            path = getattr(self, name)
            if "\0" in path or "\n" in path or '"' in path or "%" in path:
                yield f"{name}: {path[:100]!r} is not a valid path of a file"

    def whole(self, host: SshHost) -> SshHost:
        """The host with the settings for all."""
        return SshHost(
            host=host.host,
            port=host.port or self.port or PORT,
            user=host.user or self.user,
            python=host.python or self.python,
            folder=host.folder or self.folder,
            path=host.path,
            fake_gpus=host.fake_gpus,
        )
