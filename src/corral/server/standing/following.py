"""A server that does not lead: what it knows is folded from the records of another, a moment later.

Knows the journal for reading. Everything that changes something, and everything that needs the planner or the tasks,
is for the leader; whoever asks here is sent there before it comes to this (``redirect``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NoReturn

from corral.backends.base import LogPart, TaskKey
from corral.core.fleets.fleets import Fleets
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec
from corral.core.people.accounts import Accounts
from corral.core.state import State
from corral.server.clock import Clock
from corral.server.loop import AccountCommand, Command, FleetCommand
from corral.server.planning.thinking import Prospect, Why
from corral.server.service import Feed, Newsroom
from corral.server.standing.apart import apart
from corral.server.standing.vitals import WAITS_FOR, Vitals
from corral.server.start import load_with_place
from corral.store.chain import GENESIS
from corral.store.journal import NO_SEQ, Entry, Head, JournalBusy, Record, RecordSource, StoredImage
from corral.store.lookup import Lookup
from corral.wire.codec import decode

#: Whoever has not heard from the journal for so long does not know what is true any more, and says so.
STALE_S = 5.0
_AT_ONCE = 2_000
_READ_S, _LOAD_S = 10.0, 600.0


class FollowedJournal:
    """Implements ``Journal`` as far as one may without leading: by reading."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        self.epoch, self.head = 0, Head(0, GENESIS)

    def append(self, entries: Sequence[Entry]) -> Future[Head]:
        del entries
        refused: Future[Head] = Future()
        refused.set_exception(JournalBusy("this server does not lead"))
        return refused

    def read(self, after: int, limit: int) -> list[Record]:
        return self._source.read(after, limit)

    def save_image(self, image: StoredImage) -> None:
        """Images are the leader's to save."""

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        return self._source.newest_image(below)

    def archived(self, after: int) -> Iterator[Record]:
        return self._source.archived(after)

    def close(self) -> None:
        """It was opened by another."""


class Follower(Newsroom):
    """Implements the ``Service`` that the interface needs. ``catch_up`` has to be called again and again."""

    leads = False

    def __init__(self, source: RecordSource, lookup: Lookup) -> None:
        super().__init__(source.read)
        self._source = source
        self.lookup, self.journal = lookup, FollowedJournal(source)
        self.backend = self.secrets = _Elsewhere()
        self.fleet = None
        self.known, seq = load_with_place(source)
        self.journal.head = Head(seq, b"")
        self._clock = Clock(self.known.state.now_ms)
        self.followed_s = time.monotonic()  # when all that was durable was last known here
        self.database = "ok"  # or one word for what is wrong with it

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
        """Before the first leader has founded it, there is nobody to be let in."""
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
            database=self.database, waits_for=WAITS_FOR.get(self.database, ""), following=self.follows,
            followed_s_ago=round(time.monotonic() - self.followed_s, 3), seq=self.journal.head.seq,
        )  # fmt: skip

    async def catch_up(self) -> None:
        """Know all that is durable by now."""
        while True:
            after, asked_s = self.journal.head.seq, time.monotonic()
            records = await apart(partial(self._source.read, after, _AT_ONCE), _READ_S)
            if records and records[0].seq != after + 1:  # what is missing was archived: begin anew with an image
                self.known, seq = await apart(partial(load_with_place, self._source), _LOAD_S)
                self.journal.head = Head(seq, b"")
                continue
            for record in records:
                self.known.apply(decode(record.format, record.body))
            if records:
                self.journal.head, self.journal.epoch = Head(records[-1].seq, records[-1].hash), records[-1].epoch
                self.wake()
            if len(records) < _AT_ONCE:
                self.followed_s = asked_s
                return

    @property
    def durable_seq(self) -> int:
        return self.journal.head.seq

    def subscribe(self) -> Feed:
        return Feed(self, self.durable_seq)

    def promised_ms(self, gang: str) -> int | None:
        del gang  # only the leader's planner knows
        return None

    # ---- for the leader ----------------------------------------------------------------------------------------

    async def submit(self, user: str, specs: Sequence[JobSpec], request: str = "") -> Refusal:
        del user, specs, request
        return _NOT_HERE

    async def change(self, actor: str, command: Command, request: str = "") -> Refusal:
        del actor, command, request
        return _NOT_HERE

    async def change_accounts(self, actor: str, command: AccountCommand) -> Refusal:
        del actor, command
        return _NOT_HERE

    async def change_fleets(self, actor: str, command: FleetCommand) -> Refusal:
        del actor, command
        return _NOT_HERE

    async def explain(self, gang: str) -> Why | Refusal:
        del gang
        return _NOT_HERE

    async def dry_run(self, specs: Sequence[JobSpec], user: str) -> Sequence[Prospect] | Refusal:
        del specs, user
        return _NOT_HERE


_NOT_HERE = Refusal("not_leader", "this server does not lead", "ask the leader")


class _Elsewhere:
    """Logs and secrets are with the leader."""

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        del key, stream, offset, limit
        return None

    def put(self, queue: str, name: str, value: str) -> NoReturn:
        del queue, name, value
        raise JournalBusy("this server does not lead")

    def drop(self, queue: str, name: str) -> NoReturn:
        del queue, name
        raise JournalBusy("this server does not lead")
