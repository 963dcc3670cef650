"""Renews the administrator's token that the first start created, long before it expires.

The token is in the credentials file of the user who started the server, where the command line finds it; the server
writes the new one there. Knows that file and the accounts. A file with another token, or none, is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from corral.core.accounts import commands
from corral.core.accounts.accounts import Accounts, Token
from corral.server.auth import digest_of, new_token
from corral.server.service import ServerService

log = structlog.get_logger(__name__)

NAME = "first start"
LIFE_MS = 90 * 86_400_000
LOOK_S = 6 * 3600.0
ACTOR = "system"


class FirstToken:
    """``write``: replaces the file atomically, readable by its owner only."""

    def __init__(self, path: Path, write: Callable[[Path, Any], None]) -> None:
        self._path, self._write = path, write

    async def run(self, service: ServerService) -> None:
        while True:
            try:
                await self.look(service)
            except Exception as wrong:  # the old token is valid for weeks: try again later
                log.error("first_token_not_renewed", error=str(wrong))
            await asyncio.sleep(LOOK_S)

    async def look(self, service: ServerService) -> bool:
        """Replace the token if half of its lifetime has passed. Returns whether it was replaced."""
        kept = self._kept()
        token = None if kept is None else _found(service.accounts, str(kept.get("token", "")))
        now_ms = service.now_ms()
        if kept is None or token is None or not _is_due(token, now_ms):
            return False
        drawn = new_token()
        await service.change_accounts(
            ACTOR,
            lambda accounts, at_ms: commands.replace_token(
                accounts, token.id, drawn.id, drawn.digest, at_ms + LIFE_MS, at_ms
            ),
        )
        await asyncio.to_thread(self._write, self._path, kept | {"token": drawn.text})
        log.info("first_token_renewed", user=token.user)
        return True

    def _kept(self) -> dict[str, Any] | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None


def _found(accounts: Accounts, text: str) -> Token | None:
    """The token of the first start, if this text is it."""
    parts = text.split("_", 2)
    token = accounts.tokens.get(parts[1]) if len(parts) == 3 else None
    is_ours = token is not None and token.name == NAME and token.digest == digest_of(parts[2])
    return token if is_ours else None


def _is_due(token: Token, now_ms: int) -> bool:
    return token.expires_ms is None or now_ms - token.issued_ms > (token.expires_ms - token.issued_ms) // 2
