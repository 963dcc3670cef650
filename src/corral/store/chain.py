"""The hash chain: the hash of a record covers the record and the hash of the one before.

Knows bytes. The encoding of the fields is unambiguous: fixed widths for numbers, the length in front of every text. The
first record follows ``GENESIS``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256

from corral.store.journal import Entry, JournalBroken, JournalHead, Record

GENESIS = bytes(32)
BEGINNING = JournalHead(0, GENESIS)

_FIXED = struct.Struct(">QQIqIII")  # seq, epoch, format, at_ms, and the lengths of actor, request, body


def link(before: bytes, seq: int, epoch: int, format: int, entry: Entry) -> bytes:
    """The hash of a record."""
    actor, request = entry.actor.encode(), entry.request.encode()
    fixed = _FIXED.pack(seq, epoch, format, entry.at_ms, len(actor), len(request), len(entry.body))
    return sha256(b"".join((before, fixed, actor, request, entry.body))).digest()


def chain(head: JournalHead, epoch: int, format: int, entries: Sequence[Entry]) -> list[Record]:
    """Entries as the records that follow the head."""
    seq, before = head.seq, head.hash
    records = []
    for entry in entries:
        seq += 1
        before = link(before, seq, epoch, format, entry)
        records.append(Record(seq, epoch, format, entry.at_ms, entry.actor, entry.request, entry.body, before))
    return records


def why_not_next(head: JournalHead, record: Record) -> str:
    """Why a record cannot follow the head; "" if it can."""
    if record.seq != head.seq + 1:
        return f"record {head.seq + 1} is missing: record {record.seq} follows record {head.seq}"
    entry = Entry(record.at_ms, record.actor, record.body, record.request)
    try:
        hash = link(head.hash, record.seq, record.epoch, record.format, entry)
    except (TypeError, ValueError, AttributeError, struct.error):  # a value of a type that is never written
        hash = b""
    if hash != record.hash:
        return f"record {record.seq} was changed, or does not follow the record before it"
    return ""


def follow(head: JournalHead, records: Iterable[Record]) -> JournalHead:
    """Check that the records follow the head, one by one, and return the last. Raises ``JournalBroken``."""
    for record in records:
        wrong = why_not_next(head, record)
        if wrong:
            raise JournalBroken(wrong)
        head = JournalHead(record.seq, record.hash)
    return head
