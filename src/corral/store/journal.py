"""The journal: an append-only, hash-chained log of events, behind a small Protocol.

Knows records, their order and who may write them. Knows nothing of what events mean: they come encoded. Whoever
appends learns that a batch is durable through its future, and neither answers nor acts before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from msgspec import Struct

#: Above every record.
NO_SEQ = 1 << 62
#: A restored or copied journal goes on with an epoch that no server of its original can reach: whoever carries out
#: orders refuses those of an epoch that it has seen pass.
EPOCHS_AHEAD = 1_000


class Entry(Struct, frozen=True, gc=False):
    """One event to be written: encoded, with who caused it. ``request`` names the submission it came with, if it came
    with an idempotency key (see ``store.lookup.request_mark``); empty otherwise."""

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


class Head(Struct, frozen=True, gc=False):
    """The last record: its number (0: there is none yet) and its hash."""

    seq: int
    hash: bytes


class StoredImage(Struct, frozen=True, gc=False):
    """The state after the record ``seq``, encoded."""

    seq: int
    format: int
    body: bytes


class JournalBusy(Exception):
    """Another server holds the journal. Says which, and since when."""


class JournalFenced(Exception):
    """A later epoch has begun: whoever sees this must stop writing at once."""


class JournalBroken(Exception):
    """A record is not what was written, or is missing. Says which."""


class JournalFailed(Exception):
    """Something could not be written, so nothing after it may be. The server stops; what was acknowledged is safe."""


class JournalUnusable(Exception):
    """The place of the journal cannot be used: not readable, not writable, not a journal. Says what to do."""


class JournalAway(JournalUnusable):
    """The place of the journal cannot be used at the moment, and may be again by itself. ``kind``: one word for why,
    such as away, silent, locked, read_only or full."""

    def __init__(self, what: str, kind: str = "away") -> None:
        super().__init__(what)
        self.kind = kind


class JournalTooNew(JournalUnusable):
    """A later version of Corral has changed the database in a way that this one does not know."""


class Journal(Protocol):
    """One writer at a time: opening for writing takes the lease and begins a new epoch."""

    @property
    def epoch(self) -> int: ...

    @property
    def head(self) -> Head:
        """The last record that was handed in, durable or not."""
        ...

    def append(self, entries: Sequence[Entry]) -> Future[Head]:
        """Number and chain a batch; the future is done when all of it is durable, or fails, and then so does every
        later append: what was not written cannot be followed by something that was. Batches become durable in order."""
        ...

    def read(self, after: int, limit: int) -> list[Record]:
        """Durable records with a number above ``after``, in order."""
        ...

    def save_image(self, image: StoredImage) -> None:
        """Keep an image; older ones but the last few are dropped."""
        ...

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        """The newest that is whole, of a record below that one."""
        ...

    def archived(self, after: int) -> Iterator[Record]:
        """Records with a number above ``after`` that are in archives, in order; some of them may be here as well."""
        ...

    def close(self) -> None:
        """Write what was handed in, give the lease back."""
        ...


class RecordSource(Protocol):
    """A journal as whoever only reads it sees it."""

    def read(self, after: int, limit: int) -> list[Record]: ...

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        """The newest that is whole, of a record below that one."""
        ...

    def archived(self, after: int) -> Iterator[Record]:
        """Records with a number above ``after`` that are in archives, in order; some of them may be here as well."""
        ...


def all_records(journal: RecordSource, after: int = 0, at_once: int = 10_000) -> Iterator[Record]:
    """Every durable record from there on."""
    while records := journal.read(after, at_once):
        yield from records
        after = records[-1].seq
