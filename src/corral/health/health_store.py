"""The health records of a machine, kept on disk, so that a restart does not clear faults.

Knows one file. GPUs are recorded by UUID: a new GPU in an old slot starts with an empty record.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec import Struct, field

from corral.health.judgement import HealthRecord
from corral.health.lemons import End
from corral.io.files import write_file
from corral.runtime.base import TaskKey

BOOK_FILE = "book.json"
_ENDS_MAX = 2_000
_log = logging.getLogger(__name__)


class HealthRecords(Struct):
    """The records of the machine and its GPUs, how tasks ended here, and where others run."""

    node: HealthRecord = HealthRecord()
    gpus: dict[str, HealthRecord] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    tasks: list[tuple[TaskKey, tuple[str, ...]]] = field(default_factory=list)  # running tasks, and their GPUs

    def note(self, end: End, oldest_ms: int) -> None:
        self.ends = [*[each for each in self.ends if each.at_ms >= oldest_ms][-_ENDS_MAX:], end]


class HealthStore:
    """Writes only when something has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BOOK_FILE
        self._written = b""

    def read(self) -> HealthRecords:
        """Empty records if there is no file, or it cannot be read."""
        try:
            self._written = self._path.read_bytes()
            return msgspec.json.decode(self._written, type=HealthRecords)
        except (OSError, msgspec.DecodeError):
            return HealthRecords()

    def write(self, records: HealthRecords) -> None:
        body = msgspec.json.encode(records)
        if body == self._written:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path, body, mode=0o666, durable=False)
        except OSError as fault:  # the disk may be the broken part
            _log.warning("cannot write the health records: %s", fault)
        self._written = body
