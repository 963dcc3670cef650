"""The files of an agent that outlive it: its credential, how often it was started, the highest epoch it has seen, and
the last address of the gateway.

Knows files. Only the agent's account can read the credential.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.io.files import write_file
from corral.runtime.fence import Fence

CREDENTIAL, GATEWAY = "agent.json", "agent.gateway"
_log = logging.getLogger(__name__)


class BadAgentDir(Exception):
    """What is wrong with the agent's directory, and what to do about it."""


class AgentCredential(Struct, frozen=True):
    """The name of this node, its servers, and the token that proves its identity to them.

    ``gateways``: addresses of the gateway as HOST:PORT, if they differ from what the servers say.
    """

    node: str
    urls: tuple[str, ...]
    token: str
    cafile: str = ""
    gateways: tuple[str, ...] = ()
    renew_ms: int = 0  # when to exchange it for a new one

    def __repr__(self) -> str:
        return f"Credential(node={self.node!r}, urls={self.urls!r})"  # the token must not get into a log


class KnownGateway(Struct, frozen=True):
    """``urls``: the servers that named it. It is not used with other servers."""

    urls: tuple[str, ...]
    host: str
    port: int
    tls: bool


class AgentDir:
    def __init__(self, data: Path) -> None:
        self.data = data

    def own(self) -> None:
        """Make the directory, or check that it is ours: others could read or change a directory that they made."""
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            name, folder = self.data.lstat(), self.data.stat()
        except OSError as wrong:
            raise BadAgentDir(
                f"cannot create {self.data}: {wrong.strerror}. Give the agent another directory (--data)."
            ) from None
        is_ours = folder.st_uid == os.geteuid() and name.st_uid in (0, os.geteuid())
        if not is_ours or folder.st_mode & 0o022:
            raise BadAgentDir(
                f"{self.data} belongs to another account, or others can write to it. Remove it, or give the agent "
                "another directory (--data)."
            )

    def credential(self) -> AgentCredential:
        if self.data.exists():
            self.own()
        path = self.data / CREDENTIAL
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(1 << 16)
        except FileNotFoundError:
            raise BadAgentDir(
                f"this machine has not joined the cluster: {path} does not exist. Create a token with `corral node "
                "token` on the server, then run here: corral node join --server URL --token TOKEN."
            ) from None
        except OSError as wrong:
            raise BadAgentDir(f"cannot read {path}: {wrong.strerror}. Run the agent as its owner.") from None
        if mode & 0o077:
            raise BadAgentDir(
                f"other users can read {path} (mode {mode:04o}). Run chmod 600 on it. If others may have read it, join "
                "again: corral node join --replace."
            )
        try:
            return msgspec.json.decode(text, type=AgentCredential)
        except msgspec.DecodeError:
            raise BadAgentDir(f"{path} is damaged. Join again: corral node join --replace.") from None

    def has_credential(self) -> bool:
        return (self.data / CREDENTIAL).exists()

    def keep_credential(self, credential: AgentCredential) -> Path:
        self.own()
        path = self.data / CREDENTIAL
        write_file(path, msgspec.json.encode(credential))  # makes it 0600
        return path

    def next_session(self) -> int:
        """A number that no earlier agent of this machine had."""
        self.own()
        path = self.data / "agent.session"
        try:
            last = int(path.read_bytes())
        except (FileNotFoundError, ValueError):
            last = 0
        write_file(path, f"{last + 1}\n".encode())
        return last + 1

    def gateway(self, urls: tuple[str, ...]) -> KnownGateway | None:
        """The last address of the gateway of these servers. None: it is not known, so the servers have to be asked."""
        try:
            with (self.data / GATEWAY).open("rb") as file:
                found = msgspec.json.decode(file.read(1 << 16), type=KnownGateway)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return found if found.urls == urls else None

    def keep_gateway(self, known: KnownGateway) -> None:
        """Store the address if possible. Without it the agent asks the servers after its next start."""
        try:
            write_file(self.data / GATEWAY, msgspec.json.encode(known), durable=False)
        except OSError as wrong:
            _log.warning("cannot store the address of the gateway: %s", wrong)

    def fence(self) -> Fence:
        return Fence(self.data / "agent.epoch")
