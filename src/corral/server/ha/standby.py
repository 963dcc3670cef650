"""Waits for leadership and takes it: a follower becomes the owner of the journal.

Knows the database and the data folder of this server. Every server on a shared database starts here, the first one
too. A server that loses leadership does not return here: it ends and must be restarted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from msgspec import Struct

from corral.server.gateway.gateway import AgentGateway
from corral.server.ha.detached_wait import apart
from corral.server.ha.follower import Follower
from corral.server.ha.vitals import Vitals
from corral.server.journal_state import JournalState
from corral.server.vault import secrets_of
from corral.server.vault.secret_store import SecretStore
from corral.store.folder_identity import claim_identity
from corral.store.journal import Journal, JournalAway, JournalBusy, JournalFailed, JournalFenced, JournalUnusable
from corral.store.location import postgres
from corral.store.lookup import Lookup
from corral.store.rings import ChunkStore
from corral.store.sqlite.leader_lease import FileLease as FolderLease
from corral.wire.address import shown

if TYPE_CHECKING:
    from corral.store.postgres import PostgresJournal, PostgresReader

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_S = 0.2
#: How long a follower waits for an answer of the database.
FOLLOW_S = 2.0
#: Time limits: to ask which server leads, or to take leadership; to load a large journal.
TURN_S, OPEN_S = 20.0, 600.0
_AWAY_S = 0.5


class Lead(Struct, frozen=True):
    """Leadership: the right to write, and the state at that moment. ``lost`` fails when the leadership ends."""

    known: JournalState
    journal: Journal
    lookup: Lookup
    secrets: SecretStore
    lost: Future[None] | None = None
    vitals: Callable[[], Vitals] = Vitals
    until_s: Callable[[], float] | None = None  # its end by the boot clock; None: with the process
    gateway: AgentGateway | None = None  # if it has been started
    chunks: ChunkStore | None = None  # where figures over time are stored

    def when_lost(self, tell: Callable[[BaseException], None]) -> None:
        """Call ``tell`` once, in any thread, when leadership is lost; never, if it lasts as long as the process."""
        if self.lost is not None:
            self.lost.add_done_callback(
                lambda lost: tell(lost.exception() or JournalBusy("this server lost leadership"))
            )


class Standby:
    """A server waiting for leadership. ``found`` is called with the journal of an empty database. ``url``: of this
    server."""

    service: Follower  # once it is open

    def __init__(
        self,
        address: str,
        folder: Path,
        url: str,
        lease_s: float,
        found: Callable[[Journal], None],
        key_file: str = "",
    ) -> None:
        self._address = address
        self._folder = folder
        self._url = url
        self._lease_s = lease_s
        self._found = found
        self._store = postgres()
        self._folder_lease = FolderLease(folder)
        self.database = "away"  # its problem, until it is open
        self._reader: PostgresReader | None = None
        self._secret_readers = self._store.PostgresReaders(address, FOLLOW_S)  # connects on first use
        try:
            self._secrets = secrets_of(folder, key_file, self._store.PostgresSecrets(self._secret_readers))
            self._holder = claim_identity(folder).id  # the same after a restart; a copy of the folder gets another
        except BaseException:
            self._folder_lease.give_back()
            raise
        log.info("database", address=shown(address))

    def leader(self) -> str:
        """The URL of the leader; "" if there is none."""
        return self.service.leader

    async def open(self, stop: asyncio.Event) -> bool:
        """Connect to the database and load the journal, retrying as long as needed. False if ``stop`` was set. Raises
        `JournalUnusable` if an operator must act."""
        while not stop.is_set():
            try:
                opened = await _unless(stop, apart(self._opened, OPEN_S, _close_all))
                if opened is not None:
                    self._reader, self._lookups, self.service = opened
                    return True
            except JournalAway as away:
                log.warning("waiting_for_database", error=str(away), kind=away.kind)
                self.database = away.kind
                await _pause(stop, _AWAY_S)
        return False

    def _opened(self) -> tuple[PostgresReader, PostgresReader, Follower]:
        """Open two sets of connections: following needs shorter timeouts than lookups."""
        reader = self._store.PostgresReader(self._address, prepare=True, silence_s=FOLLOW_S)
        try:
            lookups = self._store.PostgresReader(self._address)
            return reader, lookups, Follower(reader, lookups.lookup)
        except BaseException:
            reader.close()
            raise

    async def until_leading(self, stop: asyncio.Event) -> Lead | None:
        """Follow until no server leads, then take leadership. None if ``stop`` was set."""
        while not stop.is_set():
            wait_s = LOOK_S
            try:
                lead = await _unless(stop, self._look())
                self.service.database = "ok"
                if lead is not None:
                    return lead
            except (JournalUnusable, JournalFailed, JournalFenced) as wrong:
                self._note(wrong)
                wait_s = _AWAY_S
            await _pause(stop, wait_s)
        return None

    def _note(self, wrong: Exception) -> None:
        """Log a problem once, and again when it changes."""
        kind = wrong.kind if isinstance(wrong, JournalAway) else "away"
        if kind != self.service.database:
            log.warning("database_away", error=str(wrong), kind=kind)
        self.service.leader, self.service.database = "", kind

    async def _look(self) -> Lead | None:
        """Catch up, and take leadership if it is free."""
        await self.service.catch_up()
        assert self._reader is not None
        now = await apart(self._reader.leadership, TURN_S)
        if now.is_held and now.holder != self._holder:
            if self.service.leader != now.url:
                log.info("following", leader=now.url, epoch=now.epoch)
            self.service.leader = now.url
            return None
        self.service.leader = ""
        with suppress(JournalBusy):
            journal = await apart(self._journal, TURN_S, lambda late: late.close())
            return await self._lead(journal)
        return None

    def _journal(self) -> PostgresJournal:
        journal: PostgresJournal = self._store.PostgresJournal(
            self._address, holder=self._holder, url=self._url, lease_s=self._lease_s, folder=self._folder
        )
        return journal

    async def _lead(self, journal: PostgresJournal) -> Lead:
        try:
            if journal.head.seq == 0:
                await apart(partial(self._found, journal), OPEN_S)
            await self.service.catch_up()
            assert self.service.journal.head.seq == journal.head.seq, "the journal has unreadable records"
        except BaseException:
            threading.Thread(target=journal.close, daemon=True).start()
            raise
        log.info("leading", epoch=journal.epoch, seq=journal.head.seq)
        vitals, lookup = partial(_vitals, journal), self._lookups.lookup

        def until_s() -> float:
            return float(journal.lease.until_s)

        chunks = self._store.PostgresChunks(self._secret_readers)
        return Lead(self.service.known, journal, lookup, self._secrets, journal.lost, vitals, until_s, chunks=chunks)

    def close(self) -> None:
        if self._reader is not None:
            self.service.end_feeds()
            self._reader.close()
            self._lookups.close()
        self._secret_readers.close()
        self._folder_lease.give_back()


def _close_all(opened: tuple[PostgresReader, PostgresReader, Follower]) -> None:
    for reader in opened[:2]:
        reader.close()


def _vitals(journal: PostgresJournal) -> Vitals:
    return Vitals(
        database="away" if journal.lost.done() else "ok",
        committed_s_ago=round(journal.committed_s_ago, 3),
        leading_for_s=round(max(0.0, journal.leading_for_s), 3),
    )


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work; None if ``stop`` was set first."""
    task, asked = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, asked):
            each.cancel()


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
