"""Where an agent keeps what must outlive it: who it is, how often it was started, and the highest epoch it has seen.

Knows files. The credential is for the agent's account alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.backends.fleet.fence import Fence
from corral.backends.local.task import records

CREDENTIAL = "agent.json"


class BadPlace(Exception):
    """What is wrong with the agent's folder, and what to do about it."""


class Credential(Struct, frozen=True):
    """The node that this machine is, and how it proves that to which servers. ``gateways``: where agents speak to them,
    as HOST:PORT, if that is another place than the servers say."""

    node: str
    urls: tuple[str, ...]
    token: str
    cafile: str = ""
    gateways: tuple[str, ...] = ()
    renew_ms: int = 0  # from when on it should be exchanged for a new one

    def __repr__(self) -> str:
        return f"Credential(node={self.node!r}, urls={self.urls!r})"  # a token has no business in a log


class AgentPlace:
    def __init__(self, data: Path) -> None:
        self.data = data

    def own(self) -> None:
        """Make the folder, or see that it is ours: what others prepared may be theirs to read and to change."""
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            name, folder = self.data.lstat(), self.data.stat()
        except OSError as wrong:
            raise BadPlace(f"{self.data} cannot be made: {wrong.strerror}. Give the agent another folder.") from None
        is_ours = folder.st_uid == os.geteuid() and name.st_uid in (0, os.geteuid())
        if not is_ours or folder.st_mode & 0o022:
            raise BadPlace(
                f"{self.data} could have been prepared by others: it belongs to another account, or others may write "
                "there. Remove it, or give the agent another folder (--data)."
            )

    def credential(self) -> Credential:
        if self.data.exists():
            self.own()
        path = self.data / CREDENTIAL
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(1 << 16)
        except FileNotFoundError:
            raise BadPlace(
                f"this machine has not joined: there is no {path}. On the server, corral node token makes a token; "
                "then run corral node join --server URL --token TOKEN here."
            ) from None
        except OSError as wrong:
            raise BadPlace(f"{path} cannot be read: {wrong.strerror}. Run the agent as the owner of it.") from None
        if mode & 0o077:
            raise BadPlace(
                f"{path} can be read by others (mode {mode:04o}). chmod 600 it; if others may have read it, join again."
            )
        try:
            return msgspec.json.decode(text, type=Credential)
        except msgspec.DecodeError:
            raise BadPlace(f"{path} is damaged. Join again: corral node join --replace.") from None

    def has_credential(self) -> bool:
        return (self.data / CREDENTIAL).exists()

    def keep_credential(self, credential: Credential) -> Path:
        self.own()
        path = self.data / CREDENTIAL
        records.write_whole(str(path), msgspec.json.encode(credential))  # makes it 0600
        records.make_durable(str(path))
        return path

    def next_session(self) -> int:
        """A number that no earlier agent of this machine had."""
        self.own()
        path = self.data / "agent.session"
        try:
            last = int(path.read_bytes())
        except (FileNotFoundError, ValueError):
            last = 0
        records.write_whole(str(path), f"{last + 1}\n".encode())
        records.make_durable(str(path))
        return last + 1

    def fence(self) -> Fence:
        return Fence(self.data / "agent.epoch")
