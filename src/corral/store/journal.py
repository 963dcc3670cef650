"""The journal: an append-only, hash-chained log of events, behind a small Protocol.

Knows records, their order and which server may write them. Knows nothing about what events mean: they are encoded. The
future of an append says when the batch is durable; the caller neither answers nor acts before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from msgspec import Struct

#: Above every record.
NO_SEQ = 1 << 62
#: A restored or copied journal continues with an epoch that no server of its original can reach: agents refuse orders
#: of an older epoch than they have seen.
EPOCHS_AHEAD = 1_000


class Entry(Struct, frozen=True, gc=False):
    """One event to be written: encoded, with its actor. ``request`` identifies its submission, if that had an
    idempotency key (see ``store.lookup.request_mark``); empty otherwise."""

    at_ms: int
    actor: str
    body: bytes
    request: str = ""


class Record(Struct, frozen=True, gc=False):
    """One event as it was written. ``hash`` covers all other fields and the hash of the record before."""

    seq: int
    epoch: int
    format: int
    at_ms: int
    actor: str
    request: str
    body: bytes
    hash: bytes


class JournalHead(Struct, frozen=True, gc=False):
    """The last record: its number (0 if there is none) and its hash."""

    seq: int
    hash: bytes


class StoredImage(Struct, frozen=True, gc=False):
    """The state after the record ``seq``, encoded."""

    seq: int
    format: int
    body: bytes


class JournalBusy(Exception):
    """Another server holds the journal; the text says which, and since when."""


class JournalFenced(Exception):
    """A later epoch has begun: this server must stop writing immediately."""


class JournalBroken(Exception):
    """A record was changed or is missing; the text says which."""


class JournalFailed(Exception):
    """A write failed, so nothing after it may be written. The server stops; acknowledged records are safe."""


class JournalUnusable(Exception):
    """The folder or database cannot be used: not readable, not writable, not a journal. The text says what to do."""


class JournalAway(JournalUnusable):
    """The database cannot be used now, but may recover by itself. ``kind``: one word for the problem, such as away,
    silent, locked, read_only or full."""

    def __init__(self, what: str, kind: str = "away") -> None:
        super().__init__(what)
        self.kind = kind


class JournalTooNew(JournalUnusable):
    """A later version of Corral has changed the schema of the database."""


class Journal(Protocol):
    """One writer at a time: opening for writing takes the lease and begins a new epoch."""

    @property
    def epoch(self) -> int: ...

    @property
    def head(self) -> JournalHead:
        """The last appended record, durable or not."""

    def append(self, entries: Sequence[Entry]) -> Future[JournalHead]:
        """Number and chain a batch. The future completes when all of it is durable. If it fails, every later append
        fails, too, so that there is never a gap. Batches become durable in order."""

    def read(self, after: int, limit: int) -> list[Record]:
        """Durable records with a number above ``after``, in order."""

    def save_image(self, image: StoredImage) -> None:
        """Save an image and drop all but the last few."""

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        """The newest intact image of a record below that number."""

    def archived(self, after: int) -> Iterator[Record]:
        """Records with a number above ``after`` from archives, in order; some may also be in the database."""

    def close(self) -> None:
        """Write what was appended and release the lease."""


class RecordSource(Protocol):
    """A journal for reading only."""

    def read(self, after: int, limit: int) -> list[Record]: ...

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        """The newest intact image of a record below that number."""

    def archived(self, after: int) -> Iterator[Record]:
        """Records with a number above ``after`` from archives, in order; some may also be in the database."""


def all_records(journal: RecordSource, after: int = 0, at_once: int = 10_000) -> Iterator[Record]:
    """Every durable record above a number."""
    while records := journal.read(after, at_once):
        yield from records
        after = records[-1].seq
