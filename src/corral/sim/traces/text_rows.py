"""Rows of text files, and errors about them.

Knows files (plain or gzip), delimiters and how a field becomes an integer; knows no particular format. An invalid
field raises TraceError with file, line and field: nothing is guessed.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

from corral.sim.traces.trace import Trace, TraceJob, TraceNodes

# How sources write a missing number or date.
BLANKS = {"", "-", "na", "n/a", "nan", "nat", "none", "null", "unknown"}
_GZIP_MAGIC = b"\x1f\x8b"


class TraceError(Exception):
    """A workload cannot be read: where (line 0 is the whole file), which field, and what to do about it."""

    def __init__(self, file: str, line: int, field: str, why: str) -> None:
        super().__init__(file, line, field, why)
        self.file = file
        self.line = line
        self.field = field
        self.why = why

    def __str__(self) -> str:
        place = f"{self.file}, line {self.line}" if self.line else self.file
        return f"{place}: {self.field}: {self.why}" if self.field else f"{place}: {self.why}"


class UnknownTrace(TraceError):
    """There is no workload of that name; the message has similar names."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, 0, "", why)

    def __reduce__(self) -> tuple[type[UnknownTrace], tuple[str, str]]:
        return UnknownTrace, (self.file, self.why)


class TraceRow:
    """The fields of one line, by name. Each method reads one field or raises TraceError."""

    __slots__ = ("file", "line", "values")

    def __init__(self, file: str, line: int, values: dict[str, str]) -> None:
        self.file = file
        self.line = line
        self.values = values

    def wrong(self, field: str, why: str) -> TraceError:
        return TraceError(self.file, self.line, field, why)

    def has(self, field: str) -> bool:
        return self.values.get(field, "").strip().lower() not in BLANKS

    def word(self, field: str) -> str:
        """The field unchanged; "" if the source has no such column."""
        return self.values.get(field, "").strip()

    def text(self, field: str) -> str:
        if field not in self.values:
            raise TraceError(self.file, 1, field, f"there is no such column.{nearest(field, self.values)}")
        if not (found := self.word(field)):
            raise self.wrong(field, "is empty, but a job needs it. Fill it in or remove the row.")
        return found

    def whole(self, field: str, least: int = 0) -> int:
        found = self.word(field)
        if _is_plain(found):
            number = int(found)
        else:
            real = self.number(field)
            number = int(real)
            if number != real:
                raise self.wrong(field, f"is {found!r}, but must be a whole number.")
        if number < least:
            raise self.wrong(field, f"is {found}, but must be at least {least}. Correct it or remove the row.")
        return number

    def number(self, field: str) -> float:
        found = self.text(field)
        try:
            real = float(found)
        except ValueError:
            raise self.wrong(field, f"is {found!r}, which is not a number. Correct it or remove the row.") from None
        if not math.isfinite(real):
            raise self.wrong(field, f"is {found!r}, which is not an amount. Correct it or remove the row.")
        return real

    def ms(self, field: str, unit_ms: int = 1000) -> int:
        """A time of the given unit (default: seconds) in milliseconds."""
        found = self.word(field)
        if _is_plain(found):
            return int(found) * unit_ms
        real = self.number(field)
        if real < 0:
            raise self.wrong(field, f"is {found}, but a time cannot be negative. Correct it or remove the row.")
        return round(real * unit_ms)

    def moment_ms(self, field: str) -> int:
        """A calendar date in milliseconds since 1970; one without a zone is taken to be UTC."""
        found = self.text(field)
        try:
            moment = datetime.fromisoformat(found)
        except ValueError:
            why = f"is {found!r}, which is not a date. Write it like 2020-06-09 18:41:01."
            raise self.wrong(field, why) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)


def _is_plain(text: str) -> bool:
    """Digits only, as nearly all fields are, and not too many of them."""
    return text.isdecimal() and len(text) < 19


class Gathering:
    """The jobs that a reader has found so far, and what it left out."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._file = str(path)
        self._jobs: list[TraceJob] = []
        self._lines: dict[str, int] = {}
        self._skipped: dict[str, int] = {}

    def take(self, row: TraceRow, field: str, job: TraceJob) -> None:
        """Add a job; ``field``: the column of its id."""
        if (earlier := self._lines.setdefault(job.id, row.line)) != row.line:
            raise row.wrong(field, f"is {job.id!r}, as in line {earlier} already. Two jobs cannot have the same id.")
        self._jobs.append(job)

    def skip(self, reason: str) -> None:
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    def trace(self, nodes: Iterable[TraceNodes] = (), notes: Iterable[str] = ()) -> Trace:
        if not self._jobs and not self._skipped:
            raise TraceError(self._file, 0, "", "contains no jobs. Is it the right file, and complete?")
        self._jobs.sort(key=_by_submission)
        skipped = tuple(self._skipped.items())
        return Trace(self._name, tuple(self._jobs), tuple(nodes), skipped, tuple(notes))


def _by_submission(job: TraceJob) -> int:
    return job.submit_ms


def read_rows(path: Path, required: Sequence[str]) -> Iterator[TraceRow]:
    """The rows of a CSV file with a header. Columns beyond the required ones may be there or not."""
    file = str(path)
    with opened(path) as text:
        reader = csv.reader(text)
        try:
            header = _header(file, next(reader, None), required)
            for cells in reader:
                if cells:
                    yield TraceRow(file, reader.line_num, _named(file, reader.line_num, header, cells))
        except csv.Error as error:
            raise TraceError(file, reader.line_num, "", f"is not CSV ({error}).") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and non-empty lines, for formats without a header."""
    with opened(path) as text:
        for number, line in enumerate(text, start=1):
            if line := line.rstrip("\r\n"):
                if not line.isspace():
                    yield number, line


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """The file as text, unpacked if it is gzip, whatever its name. Errors become TraceError."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            source = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw
            with io.TextIOWrapper(source, encoding="utf-8-sig", newline="") as text:
                yield text
    except FileNotFoundError:
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise TraceError(str(path), 0, "", f"there is no such file.{nearest(path.name, siblings)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(str(path), 0, "", f"is a damaged gzip file ({error}). Fetch it again.") from None
    except UnicodeDecodeError as error:
        raise TraceError(str(path), 0, "", f"is not UTF-8 text ({error.reason}). Convert it first.") from None
    except OSError as error:
        raise TraceError(str(path), 0, "", f"cannot be read: {error.strerror or error}.") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name; starts with a space or is empty."""
    names = sorted(known)
    if near := difflib.get_close_matches(word, names, n=1, cutoff=0.5):
        return f" Did you mean {near[0]!r}?"
    return f" There are: {', '.join(names[:40])}{', …' if len(names) > 40 else ''}." if names else ""


def _header(file: str, cells: list[str] | None, required: Sequence[str]) -> list[str]:
    if not cells:
        raise TraceError(file, 0, "", "is empty. The first line must name the columns.")
    header = [cell.strip() for cell in cells]
    for column in required:
        if column not in header:
            raise TraceError(file, 1, column, f"there is no such column.{nearest(column, header)}")
    if twice := [name for name in header if header.count(name) > 1]:
        raise TraceError(file, 1, twice[0], "is the name of two columns. Rename one of them.")
    return header


def _named(file: str, line: int, header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) < len(header):
        why = f"the row ends before this column: it has {len(cells)} of {len(header)} fields."
        raise TraceError(file, line, header[len(cells)], why)
    if len(cells) > len(header):
        why = f"the row has {len(cells)} fields, the header {len(header)}. Quote fields that contain commas."
        raise TraceError(file, line, "", why)
    return dict(zip(header, cells, strict=True))
