"""Credentials of nodes: digests, saved beside the journal for use before it is loaded.

Knows a file and how a token is checked against a digest. The accounts in the journal are authoritative; this file is a
copy of what the gateway needs, readable by its owner only and replaced atomically.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.core.accounts.accounts import Accounts, Token, TokenIssued, TokenRevoked, UserRemoved, UserSet
from corral.core.accounts.commands import node_user
from corral.io.files import write_file

ROSTER = "roster.json"
SYNC = "node.sync"  # the scope of the credential of a node
_NODE = node_user("")
_PREFIX = "corral"
_NO_DIGEST = hashlib.sha256(b"").hexdigest()


class NodeCredential(Struct, frozen=True, gc=False, array_like=True):
    """``digest``: SHA-256 of the secret part. ``expires_ms``: by the wall clock."""

    id: str
    digest: str
    expires_ms: int | None = None


class Roster(Struct, frozen=True):
    credentials: dict[str, tuple[NodeCredential, ...]] = {}
    gone: tuple[str, ...] = ()


def read_roster(folder: Path) -> Roster:
    """The saved roster; an empty one if it cannot be read: then all agents wait until the state is loaded."""
    try:
        return msgspec.json.decode((folder / ROSTER).read_bytes(), type=Roster)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Roster()


def write_roster(folder: Path, roster: Roster) -> None:
    write_file(folder / ROSTER, msgspec.json.encode(roster))


def proved(known: Collection[NodeCredential], token: str, now_ms: int) -> NodeCredential | None:
    """The credential that the token proves. Unknown and wrong tokens get the same answer in the same time."""
    parts = token.split("_", 2)
    if len(parts) != 3 or parts[0] != _PREFIX or not token.isascii():
        return None
    found = next((each for each in known if each.id == parts[1]), None)
    given = hashlib.sha256(parts[2].encode()).hexdigest()
    is_right = hmac.compare_digest(_NO_DIGEST if found is None else found.digest, given)
    is_over = found is not None and found.expires_ms is not None and found.expires_ms <= now_ms
    return found if is_right and not is_over else None


class NodeCredentials:
    """The credentials of all nodes, from the accounts. ``take`` must get every event that changes accounts."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._of: dict[str, dict[str, NodeCredential]] = {}
        self._node: dict[str, str] = {}  # token -> node
        for token in accounts.tokens.values():
            if token.user.startswith(_NODE):
                self._add(token)

    def all(self) -> dict[str, tuple[NodeCredential, ...]]:
        return {node: self.of(node) for node in self._of}

    def of(self, node: str) -> tuple[NodeCredential, ...]:
        user = self._accounts.users.get(node_user(node))
        return () if user is None or user.disabled else tuple(self._of.get(node, {}).values())

    def take(self, event: object) -> str | None:
        """The node whose credentials this event has changed, if any."""
        if isinstance(event, TokenRevoked):
            node = self._node.pop(event.token, None)
            if node is not None:
                self._of[node].pop(event.token, None)
            return node
        if not isinstance(event, TokenIssued | UserSet | UserRemoved) or not event.user.startswith(_NODE):
            return None
        node = event.user.removeprefix(_NODE)
        if isinstance(event, TokenIssued) and (token := self._accounts.tokens.get(event.token)) is not None:
            self._add(token)
        if isinstance(event, UserRemoved):
            for gone in self._of.pop(node, {}):
                self._node.pop(gone, None)
        return node

    def _add(self, token: Token) -> None:
        node = token.user.removeprefix(_NODE)
        if SYNC in token.scope:
            self._of.setdefault(node, {})[token.id] = NodeCredential(token.id, token.digest, token.expires_ms)
            self._node[token.id] = node
