"""Renews the administrator's token that the first start created, long before it expires.

The token is in the credentials file of the user who started the server, where the command line finds it; the server
writes the new one there. Knows that file and the accounts. A file with another token, or none, is left alone.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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


def other_credentials(path: Path, url: str) -> tuple[str, Path] | None:
    """The server that the file's credentials are for, if it is another one, and the file that keeps them then."""
    kept = _read(path) or {}
    other = str(kept.get("url", ""))
    if not kept.get("token") or not other or other == url:
        return None
    place = re.sub(r"[^A-Za-z0-9.]+", "-", urlsplit(other).netloc).strip("-") or "other"
    return other, path.with_name(f"{path.stem}-{place}{path.suffix}")


def set_aside(path: Path, url: str) -> None:
    """Keep credentials for another server beside those that the first start of this one is going to write."""
    found = other_credentials(path, url)
    if found is not None:
        os.replace(path, found[1])
        log.warning("credentials_set_aside", url=found[0], path=str(found[1]))


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
        kept = _read(self._path)
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


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
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
