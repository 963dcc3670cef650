"""A standby server: its state is folded from the records of the leader.

Reads the journal only. Changes, and everything that needs the planner or the tasks, are for the leader; ``redirect``
sends such requests there before they reach this module.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NoReturn

from corral.core.accounts.accounts import Accounts
from corral.core.fleets.fleets import Fleets
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec, QueueSpec
from corral.core.state import State
from corral.runtime.base import LogPart, TaskKey
from corral.server.clock import Clock
from corral.server.ha.detached_wait import apart
from corral.server.ha.vitals import WAITS_FOR, Vitals
from corral.server.loop import AccountCommand, Command, FleetCommand
from corral.server.planner.questions import DryRunOutcome, QueueOutcome, StartOutlook, WhyAnswer
from corral.server.recovery import load_with_place
from corral.server.service import EventFeed, EventHub
from corral.store.chain import GENESIS
from corral.store.journal import NO_SEQ, Entry, JournalBusy, JournalHead, Record, RecordSource, StoredImage
from corral.store.lookup import Lookup
from corral.wire.codec import decode

#: A standby that could not read the journal for this time reports that it is out of date.
STALE_S = 5.0
_AT_ONCE = 2_000
_READ_S, _LOAD_S = 10.0, 600.0


class FollowedJournal:
    """Implements ``Journal`` for reading only."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        self.epoch, self.head = 0, JournalHead(0, GENESIS)

    def append(self, entries: Sequence[Entry]) -> Future[JournalHead]:
        refused: Future[JournalHead] = Future()
        refused.set_exception(JournalBusy("this server is not the leader"))
        return refused

    def read(self, after: int, limit: int) -> list[Record]:
        return self._source.read(after, limit)

    def save_image(self, image: StoredImage) -> None:
        """Only the leader saves images."""

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        return self._source.newest_image(below)

    def archived(self, after: int) -> Iterator[Record]:
        return self._source.archived(after)

    def close(self) -> None:
        """The source is closed by its owner."""


class Follower(EventHub):
    """Implements the ``Service`` that the API needs. ``catch_up`` must be called regularly."""

    leads = False

    def __init__(self, source: RecordSource, lookup: Lookup) -> None:
        super().__init__(source.read)
        self._source = source
        self.lookup, self.journal = lookup, FollowedJournal(source)
        self.backend = self.secrets = _Elsewhere()
        self.fleet = None
        self.known, seq = load_with_place(source)
        self.journal.head = JournalHead(seq, b"")
        self._clock = Clock(self.known.state.now_ms)
        self.followed_s = time.monotonic()  # when this server last had all durable records
        self.database = "ok"  # or one word for its problem

    @property
    def state(self) -> State:
        return self.known.state

    @property
    def accounts(self) -> Accounts:
        return self.known.accounts

    @property
    def fleets(self) -> Fleets:
        return self.known.fleets

    @property
    def is_ready(self) -> bool:
        """False for an empty journal: before the first leader has started, there are no users."""
        return self.journal.head.seq > 0 and not self.is_ending

    @property
    def has_failed(self) -> bool:
        return False

    def now_ms(self) -> int:
        return self._clock.now_ms()

    @property
    def follows(self) -> bool:
        return time.monotonic() - self.followed_s < STALE_S

    def vitals(self) -> Vitals:
        return Vitals(
            database=self.database,
            waits_for=WAITS_FOR.get(self.database, ""),
            following=self.follows,
            followed_s_ago=round(time.monotonic() - self.followed_s, 3),
            seq=self.journal.head.seq,
        )

    async def catch_up(self) -> None:
        """Apply all records that are durable by now."""
        while True:
            after, asked_s = self.journal.head.seq, time.monotonic()
            records = await apart(partial(self._source.read, after, _AT_ONCE), _READ_S)
            if records and records[0].seq != after + 1:  # the missing records were archived: reload from an image
                self.known, seq = await apart(partial(load_with_place, self._source), _LOAD_S)
                self.journal.head = JournalHead(seq, b"")
                continue
            for record in records:
                self.known.apply(decode(record.format, record.body))
            if records:
                self.journal.head, self.journal.epoch = (
                    JournalHead(records[-1].seq, records[-1].hash),
                    records[-1].epoch,
                )
                self.wake()
            if len(records) < _AT_ONCE:
                self.followed_s = asked_s
                return

    @property
    def durable_seq(self) -> int:
        return self.journal.head.seq

    def subscribe(self) -> EventFeed:
        return EventFeed(self, self.durable_seq)

    async def outlooks(self, gangs: Sequence[str]) -> Mapping[str, StartOutlook]:
        del gangs  # only the leader's planner knows
        return {}

    async def line(self, most: int) -> Sequence[str] | Refusal:
        return _NOT_HERE

    def reserved_start_ms(self, gang: str) -> int | None:
        return None

    # ---- only on the leader ------------------------------------------------------------------------------------

    async def submit(self, user: str, specs: Sequence[JobSpec], request: str = "") -> Refusal:
        return _NOT_HERE

    async def change(self, actor: str, command: Command, request: str = "") -> Refusal:
        return _NOT_HERE

    async def change_accounts(self, actor: str, command: AccountCommand) -> Refusal:
        return _NOT_HERE

    async def change_fleets(self, actor: str, command: FleetCommand) -> Refusal:
        return _NOT_HERE

    async def explain(self, gang: str) -> WhyAnswer | Refusal:
        return _NOT_HERE

    async def dry_run(self, specs: Sequence[JobSpec], user: str) -> Sequence[DryRunOutcome] | Refusal:
        return _NOT_HERE

    async def try_queue(self, spec: QueueSpec) -> QueueOutcome | Refusal:
        return _NOT_HERE


_NOT_HERE = Refusal("not_leader", "this server is not the leader", "send the request to the leader")


class _Elsewhere:
    """Logs and secrets, which only the leader has."""

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        return None

    def put(self, queue: str, name: str, value: str) -> NoReturn:
        raise JournalBusy("this server is not the leader")

    def drop(self, queue: str, name: str) -> NoReturn:
        raise JournalBusy("this server is not the leader")
