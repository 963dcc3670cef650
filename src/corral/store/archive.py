"""Archives: consecutive records in a file, with both ends of their hash chain, so that the file can be verified alone.

JSON lines, one record each; the first line names the record before, the last line the final record. Compressed if the
name ends in ``.gz``. Knows files and the chain; knows nothing about where records come from.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from hashlib import file_digest
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from corral.io.files import Replacement, make_folder
from corral.store.chain import why_not_next
from corral.store.journal import JournalBroken, JournalHead, Record

VERSION = 1


class _Front(Struct):
    journal_archive: int  # the version of this format
    after: int
    hash: str


class _End(Struct):
    last: int
    hash: str


class ArchiveRefused(Exception):
    """These records cannot be archived; the text says why."""


#: seq, epoch, format, at_ms, actor, request, body, hash
_Line = tuple[int, int, int, int, str, str, str, str]
_line: msgspec.json.Decoder[_Line | _End] = msgspec.json.Decoder(_Line | _End)
_encoder = msgspec.json.Encoder()


def write_archive(path: Path, before: JournalHead, records: Iterable[Record]) -> JournalHead:
    """Write records that follow ``before``, checking each, atomically. Returns the last one."""
    if path.exists():
        raise ArchiveRefused(f"{path} already exists. Name another file.")
    make_folder(path.parent)
    with Replacement(path) as opened, os.fdopen(opened, "wb", closefd=False) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file, filename="", mode="wb", compresslevel=6, mtime=0) as packed:
                return _write(packed, before, records)
        return _write(file, before, records)


def _write(file: IO[bytes] | gzip.GzipFile, before: JournalHead, records: Iterable[Record]) -> JournalHead:
    file.write(_encoder.encode(_Front(VERSION, before.seq, before.hash.hex())) + b"\n")
    head = before
    for r in records:
        wrong = why_not_next(head, r)
        if wrong:
            raise JournalBroken(wrong)
        line = (r.seq, r.epoch, r.format, r.at_ms, r.actor, r.request, r.body.decode(), r.hash.hex())
        file.write(_encoder.encode(line) + b"\n")
        head = JournalHead(r.seq, r.hash)
    file.write(_encoder.encode(_End(head.seq, head.hash.hex())) + b"\n")
    return head


def read_archive(path: Path) -> Iterator[Record]:
    """The records of a file, each checked. Raises ``JournalBroken`` if the file was changed or is truncated."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from _read(file, path)
    except _DAMAGE as wrong:
        raise JournalBroken(f"{path} cannot be read, or is damaged: {wrong}") from None


#: Errors from reading a file that is missing or damaged.
_DAMAGE = (OSError, EOFError, zlib.error, ValueError, msgspec.DecodeError)


def _read(file: IO[bytes] | gzip.GzipFile, path: Path) -> Iterator[Record]:
    head = _front(file.readline(), path)
    for text in file:
        line = _line.decode(text)
        if isinstance(line, _End):
            if (line.last, line.hash) != (head.seq, head.hash.hex()) or file.readline():
                raise JournalBroken(f"the last line of {path} does not match its records")
            return
        seq, epoch, format, at_ms, actor, request, body, digest = line
        record = Record(seq, epoch, format, at_ms, actor, request, body.encode(), bytes.fromhex(digest))
        wrong = why_not_next(head, record)
        if wrong:
            raise JournalBroken(f"{path}: {wrong}")
        head = JournalHead(record.seq, record.hash)
        yield record
    raise JournalBroken(f"{path} is truncated after record {head.seq}")


def _front(text: bytes, path: Path) -> JournalHead:
    front = msgspec.json.decode(text, type=_Front)
    if front.journal_archive != VERSION:
        raise JournalBroken(f"{path} has version {front.journal_archive}; this version of Corral reads {VERSION}")
    return JournalHead(front.after, bytes.fromhex(front.hash))


def archive_begins_after(path: Path) -> JournalHead:
    """The record before the first one of a file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _front(file.readline(), path)
    except _DAMAGE as wrong:
        raise JournalBroken(f"{path} cannot be read, or is damaged: {wrong}") from None


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
