"""Waiting for leadership, and taking it: from a follower to the journal that this server may write.

Knows the database and the data folder of this server. Every server on a database begins here, the first one too. One
that leads no more does not come back here: it ends, and is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from corral.server.saved import Known
from corral.server.standing.following import Follower
from corral.server.vault import secrets_of
from corral.server.vault.store import SecretStore
from corral.store.address import postgres
from corral.store.identity import claim_identity
from corral.store.journal import Journal, JournalBusy, JournalUnusable
from corral.store.lookup import Lookup
from corral.store.sqlite.lease import Lease as FolderLease
from corral.wire.address import shown

log = structlog.get_logger(__name__)

LOOK_S = 0.2
_AWAY_S = 1.0


class Lead(Struct, frozen=True):
    """The right to write, and what is known at that moment. ``lost`` fails when that right ends by itself."""

    known: Known
    journal: Journal
    lookup: Lookup
    secrets: SecretStore
    lost: Future[None] | None = None

    def when_lost(self, tell: Callable[[BaseException], None]) -> None:
        """Told once, in any thread; never, where the right is this process's as long as it lives."""
        if self.lost is not None:
            self.lost.add_done_callback(lambda lost: tell(lost.exception() or JournalBusy("this server leads no more")))


class Standby:
    """``found`` is called with the journal of an empty database. ``url``: where this server answers."""

    def __init__(
        self,
        address: str,
        folder: Path,
        url: str,
        lease_s: float,
        found: Callable[[Journal], None],
        key_file: str = "",
    ) -> None:
        self._address, self._folder, self._url, self._lease_s, self._found = address, folder, url, lease_s, found
        self._store = postgres()
        self._folder_lease = FolderLease(folder)
        try:
            self._holder = claim_identity(folder).id  # also after a restart; a copy of the folder is another server
            self._reader = self._store.PostgresReader(address, prepare=True)
            self._secrets = secrets_of(folder, key_file, self._store.PostgresSecrets(self._reader.readers))
            self.service = Follower(self._reader, self._reader.lookup)
        except BaseException:
            self._folder_lease.give_back()
            raise
        log.info("database", address=shown(address))

    def leader(self) -> str:
        """Where the leader answers; "" while there is none."""
        return self.service.leader

    async def until_leading(self, stop: asyncio.Event) -> Lead | None:
        """Follow until nobody leads, then lead. None: somebody asked to stop."""
        while not stop.is_set():
            wait_s = LOOK_S
            try:
                journal = await self._look()
                if journal is not None:
                    return await self._lead(journal)
            except JournalUnusable as away:
                log.warning("database_away", error=str(away))
                self.service.leader, wait_s = "", _AWAY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await stop.wait()
        return None

    async def _look(self) -> Journal | None:
        """Catch up; the journal, if it was to be had."""
        await self.service.catch_up()
        now = await asyncio.to_thread(self._reader.leadership)
        if now.is_held and now.holder != self._holder:
            if self.service.leader != now.url:
                log.info("following", leader=now.url, epoch=now.epoch)
            self.service.leader = now.url
            return None
        self.service.leader = ""
        with suppress(JournalBusy):
            journal: Journal = await asyncio.to_thread(self._open)
            return journal
        return None

    def _open(self) -> Journal:
        journal: Journal = self._store.PostgresJournal(
            self._address, holder=self._holder, url=self._url, lease_s=self._lease_s, folder=self._folder
        )
        return journal

    async def _lead(self, journal: Journal) -> Lead:
        try:
            if journal.head.seq == 0:
                await asyncio.to_thread(self._found, journal)
            await self.service.catch_up()
            assert self.service.journal.head.seq == journal.head.seq, "the journal has records that cannot be read"
        except BaseException:
            await asyncio.to_thread(journal.close)
            raise
        log.info("leading", epoch=journal.epoch, seq=journal.head.seq)
        lost: Future[None] = journal.lost  # type: ignore[attr-defined]
        return Lead(self.service.known, journal, self._reader.lookup, self._secrets, lost)

    def close(self) -> None:
        self.service.end_feeds()
        self._reader.close()
        self._folder_lease.give_back()
