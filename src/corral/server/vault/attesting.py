"""Signed heads of the journal, published at an interval: appended to a file, posted to a URL, or both.

They should go where users who can write the journal cannot change them. If one could not be published, the server only
logs an error: the next one covers everything before it, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from corral.io.http import fetch
from corral.store.attest import Signer, line_of
from corral.store.journal import JournalHead
from corral.wire.site.retention import AttestRules

log = structlog.get_logger(__name__)

_POST_S = 20.0


class Attester:
    """``head``: returns the last durable record; may be slow."""

    def __init__(self, rules: AttestRules, signer: Signer, head: Callable[[], JournalHead]) -> None:
        self._rules = rules
        self._signer = signer
        self._head = head
        self.last_seq = 0

    async def run(self, now_ms: Callable[[], int]) -> None:
        while True:
            try:
                await self.attest(now_ms())
            except Exception as fault:  # the journal could not be read: try again at the next interval
                log.error("head_not_attested", error=str(fault))
            await asyncio.sleep(self._rules.every_ms / 1000)

    async def attest(self, at_ms: int) -> bool:
        """Publish the current head, unless it was published before. Returns whether it arrived everywhere."""
        head = await asyncio.to_thread(self._head)
        if head.seq == self.last_seq:
            return True
        line = line_of(self._signer.attest(head, at_ms))
        arrived = True
        for where, hand_over in ((self._rules.file, _append), (self._rules.url, _post)):
            if not where:
                continue
            try:
                await asyncio.to_thread(hand_over, where, line)
            except Exception as error:
                arrived = False
                log.error("head_not_attested", where=where, seq=head.seq, error=str(error))
        if arrived:
            self.last_seq = head.seq
        return arrived


def _append(path: str, line: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def _post(url: str, line: bytes) -> None:
    head, _ = fetch("POST", url, {"Content-Type": "application/json"}, line, timeout_s=_POST_S)
    if head.status >= 300:
        raise OSError(f"it answered with status {head.status}")
