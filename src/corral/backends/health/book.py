"""What is known of a machine's health, kept on disk, so that a restart forgives nothing.

Knows one file. GPUs are written down by UUID: a new one in an old slot begins with a clean sheet.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec import Struct, field

from corral.backends.base import TaskKey
from corral.backends.health.drills import write_file
from corral.backends.health.judgement import Sheet
from corral.backends.health.lemons import End

BOOK_FILE = "book.json"
_ENDS_MAX = 2_000
_log = logging.getLogger(__name__)


class Book(Struct):
    """The sheets of the machine and its GPUs, how tasks ended here, and where others run."""

    node: Sheet = Sheet()
    gpus: dict[str, Sheet] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    tasks: list[tuple[TaskKey, tuple[str, ...]]] = field(default_factory=list)  # that run, and on which GPUs

    def note(self, end: End, oldest_ms: int) -> None:
        self.ends = [*[each for each in self.ends if each.at_ms >= oldest_ms][-_ENDS_MAX:], end]


class BookFile:
    """Written only when something has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BOOK_FILE
        self._written = b""

    def read(self) -> Book:
        """An empty one if there is none, or none that can be read."""
        try:
            self._written = self._path.read_bytes()
            return msgspec.json.decode(self._written, type=Book)
        except (OSError, msgspec.DecodeError):
            return Book()

    def write(self, book: Book) -> None:
        body = msgspec.json.encode(book)
        if body == self._written:
            return
        try:
            write_file(self._path, msgspec.Raw(body))
        except OSError as fault:  # the disk may be what is sick
            _log.warning("the book of health cannot be written: %s", fault)
        self._written = body
