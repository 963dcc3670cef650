"""What is held back until the journal is durable: answers, effects and the event stream.

A batch is passed to the journal as soon as it is applied. What it causes is released when it and everything before it
are durable. After a failure nothing is released any more, and all waiting requests fail. Knows the journal; knows
nothing about the state.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import structlog
from msgspec import Struct

from corral.core.effects import Effect
from corral.core.events import JobSubmitted
from corral.server.shutdown import ServerStopped, settle, traced
from corral.store.journal import Entry, Journal, JournalHead
from corral.wire.codec import AnyEvent

log = structlog.get_logger(__name__)


class Batch(Struct, gc=False):
    """Events that are applied, written and made durable as one: what was asked for, and all that follows from it.

    ``request`` identifies a submission that had an idempotency key.
    """

    actor: str
    request: str
    events: Sequence[AnyEvent]
    bodies: list[bytes]  # the events, encoded
    effects: Sequence[Effect]
    seq: int = 0  # of its last record


class Durability:
    """Passes batches to the journal. ``execute`` gets effects, ``watchers`` get events, once they are durable."""

    def __init__(self, journal: Journal, execute: Callable[[Effect], None]) -> None:
        self.journal = journal
        self.watchers: list[Callable[[AnyEvent], None]] = []
        self.durable_seq = journal.head.seq
        self.failure: BaseException | None = None
        self.stopped = asyncio.Event()
        self.measure: Callable[[float], None] | None = None  # gets the seconds that records took to become durable
        self._execute = execute
        self._last: Future[JournalHead] | None = None
        self._is_watching = False
        self._held: deque[Batch] = deque()  # appended, and not durable yet
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # for the record of this number

    def append(self, batch: Batch) -> None:
        """Pass a batch to the journal, and hold back what it causes until it is durable."""
        entries = [
            Entry(event.at_ms, batch.actor, body, batch.request if isinstance(event, JobSubmitted) else "")
            for event, body in zip(batch.events, batch.bodies, strict=True)
        ]
        try:
            self._last = self.journal.append(entries)
        except Exception as fault:  # the state is ahead of the journal
            self.stop(fault)
            raise ServerStopped(str(fault)) from fault
        batch.seq = self.journal.head.seq
        self._held.append(batch)
        self._watch(self._last)

    async def wait(self) -> None:
        """Returns when all that was appended so far is durable."""
        self.check()
        if self._last is not None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self.journal.head.seq, done))
            self._watch(self._last)
            await done

    def flush(self, timeout_s: float) -> None:
        """Block until all that was appended so far is durable."""
        if self._last is not None:
            self._last.result(timeout_s)

    def check(self) -> None:
        """Raise an error if nothing more can be written."""
        if self.failure is not None:
            raise ServerStopped(str(self.failure))

    def stop(self, failure: BaseException) -> None:
        """The server cannot continue, mostly because the journal cannot be written: fail all waiting requests."""
        if self.failure is not None:
            return
        log.error("server_failed", error=str(failure), exc_info=traced(failure))
        self.failure = failure
        self.stopped.set()
        self._held.clear()
        while self._waiting:
            settle(self._waiting.popleft()[1], failure)

    def _watch(self, last: Future[JournalHead]) -> None:
        """Wait for one append at a time: when the newest is durable, so is everything before it."""
        if not self._is_watching:
            self._is_watching = True
            loop, since_s = asyncio.get_running_loop(), time.monotonic()
            last.add_done_callback(lambda future: loop.call_soon_threadsafe(self._advance, future, since_s))

    def _advance(self, future: Future[JournalHead], since_s: float) -> None:
        """Release what is durable now."""
        self._is_watching = False
        try:
            self.durable_seq = future.result().seq
            if self.measure is not None:
                self.measure(time.monotonic() - since_s)
            while self._waiting and self._waiting[0][0] <= self.durable_seq:
                settle(self._waiting.popleft()[1], None)
            while self._held and self._held[0].seq <= self.durable_seq:
                self._release(self._held.popleft())
        except Exception as fault:  # effects that are durable and were not executed are executed by the next server
            self.stop(fault)
        if self._last is not None and (self._held or self._waiting):
            self._watch(self._last)

    def _release(self, batch: Batch) -> None:
        for watcher in self.watchers:
            for event in batch.events:
                watcher(event)
        for effect in batch.effects:
            self._execute(effect)
