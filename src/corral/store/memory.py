"""A journal in memory, with the same order and the same chain as one on disk, for tests and experiments.

Knows nothing about files. With ``held``, records become durable only on ``release``, so that a test can act between
appended and durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from corral.store.chain import BEGINNING, chain
from corral.store.journal import NO_SEQ, Entry, JournalFailed, JournalHead, Record, StoredImage
from corral.store.memory_lookup import MemoryLookup
from corral.wire import codec

IMAGES_KEPT = 3


class MemoryJournal:
    """Implements ``Journal``. Creating a second one with the records of a first simulates a restart."""

    def __init__(self, records: Sequence[Record] = (), *, held: bool = False) -> None:
        self.held = held
        self._records = list(records)
        self._images: list[StoredImage] = []
        self._waiting: list[tuple[Future[JournalHead], list[Record], JournalHead]] = []
        self._failure: JournalFailed | None = None
        self.lookup = MemoryLookup()
        self.lookup.feed(self._records)
        last = self._records[-1] if self._records else None
        self._head = BEGINNING if last is None else JournalHead(last.seq, last.hash)
        self._epoch = 1 if last is None else last.epoch + 1

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def head(self) -> JournalHead:
        return self._head

    def append(self, entries: Sequence[Entry]) -> Future[JournalHead]:
        future: Future[JournalHead] = Future()
        future.set_running_or_notify_cancel()  # an append cannot be cancelled
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        records = chain(self._head, self._epoch, codec.FORMAT, entries)
        if records:
            self._head = JournalHead(records[-1].seq, records[-1].hash)
        self._waiting.append((future, records, self._head))
        if not self.held:
            self.release()
        return future

    def release(self) -> None:
        """Make durable what was appended."""
        waiting, self._waiting = self._waiting, []
        for future, records, head in waiting:
            self._records += records
            self.lookup.feed(records)
            future.set_result(head)

    def fail(self, why: str = "made to fail") -> None:
        """Fail all appends that are not durable, and all later ones."""
        self._failure = JournalFailed(why)
        waiting, self._waiting = self._waiting, []
        for future, _, _ in waiting:
            future.set_exception(self._failure)

    def read(self, after: int, limit: int) -> list[Record]:
        first = self._records[0].seq if self._records else 1
        at = max(0, after + 1 - first)
        return self._records[at : at + limit]

    def save_image(self, image: StoredImage) -> None:
        self._images = sorted([*self._images, image], key=lambda kept: kept.seq)[-IMAGES_KEPT:]

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        return next((image for image in reversed(self._images) if image.seq < below), None)

    def archived(self, after: int) -> Iterator[Record]:
        del after
        return iter(())

    def close(self) -> None:
        self.release()
        self._failure = self._failure or JournalFailed("the journal is closed")
