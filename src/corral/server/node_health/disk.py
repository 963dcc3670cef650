"""Watches the disk of the data folder: with too little free space no new jobs are accepted, until there is enough.

Knows the free space and the reserve of the journal. Sets a flag of the service; decides nothing else.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import structlog

from corral.amount_text import size
from corral.core.intake.refusal import Refusal
from corral.store.reserve import Reserve, free_bytes, keep_bytes

log = structlog.get_logger(__name__)

_LOOK_S = 1.0
_MIB = 1 << 20


class TakesWork(Protocol):
    closed: Refusal | None  # why no new jobs are accepted now


class DiskWatch:
    """``free``: free bytes at the last check, for the metrics."""

    def __init__(self, folder: Path, reserve: Reserve, service: TakesWork) -> None:
        self._folder = folder
        self._reserve = reserve
        self._service = service
        self.free = free_bytes(folder)

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Check once. To accept jobs again a quarter more must be free, so that the state does not flap."""
        self.free, keep = free_bytes(self._folder), keep_bytes(self._folder)
        was_low = self._service.closed is not None
        is_low = self.free < (keep * 5 // 4 if was_low else keep)
        if not is_low and not self._reserve.is_held and self._reserve.take():
            log.info("reserve_taken", folder=str(self._folder))
        if is_low == was_low:
            return
        if is_low:
            log.error("disk_low", folder=str(self._folder), free_mib=self.free // _MIB, wanted_mib=keep // _MIB)
            self._service.closed = _full(self._folder, self.free, keep)
        else:
            log.warning("disk_has_room_again", folder=str(self._folder), free_mib=self.free // _MIB)
            self._service.closed = None


def _full(folder: Path, free: int, keep: int) -> Refusal:
    why = f"the disk of the server is nearly full: {size(free // _MIB)} free in {folder}, {size(keep // _MIB)} needed"
    return Refusal("disk_full", why, "free space there; the server then accepts jobs again")
