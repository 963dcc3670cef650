"""Files of items and results for ``corral batch submit``: JSON lines in, JSON lines out, resumable.

The id of an item is made of the content of the file and the number of its line. So a second run neither repeats what
is in the output already, nor runs again on the server what was submitted before.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from corral.cli.errors import BAD_INPUT, Complaint

_FLUSH_EVERY = 100


class ItemFile:
    """One file of items. Standard input (``-``) is read whole and cannot be continued."""

    def __init__(self, file: str, out: str | None) -> None:
        self._out = out
        try:
            body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as wrong:
            raise Complaint(
                f"cannot read {file}: {wrong.strerror}", "check the name and the folder", BAD_INPUT
            ) from None
        self._lines = [line for line in body.splitlines() if line.strip()]
        self._run = hashlib.sha256(body).hexdigest()[:16]
        self._file = file
        self._skip = self._kept()

    def _kept(self) -> int:
        """How many results the output has; a last line that was cut off is removed."""
        if self._out is None or not Path(self._out).exists():
            return 0
        kept = 0
        good = 0
        body = Path(self._out).read_bytes()
        for line in body.splitlines(keepends=True):
            if not line.endswith(b"\n") or json.loads(line).get("id") != f"{self._run}-{kept}":
                break
            kept += 1
            good += len(line)
        if body and not kept:
            why = f"{self._out} has the results of another file"
            raise Complaint(why, "choose another --out, or remove it", exit_code=BAD_INPUT)
        with open(self._out, "r+b") as file:
            file.truncate(good)
        return kept

    def left(self) -> Iterator[Any]:
        for number in range(self._skip, len(self._lines)):
            try:
                yield json.loads(self._lines[number])
            except ValueError:
                what = f"{self._file}: item {number + 1} is not JSON"
                raise Complaint(what, 'write one value per line, like {"text": "hello"}', BAD_INPUT) from None

    def ids(self) -> Iterator[str]:
        for number in range(self._skip, len(self._lines)):
            yield f"{self._run}-{number}"

    @contextmanager
    def output(self) -> Iterator[ResultLines]:
        if self._out is None:
            yield ResultLines(sys.stdout)
            sys.stdout.flush()
        else:
            with open(self._out, "a", encoding="utf-8") as file:
                yield ResultLines(file)


class ResultLines:
    """Results as lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.count = 0

    def add(self, outcome: dict[str, Any]) -> None:
        self._file.write(json.dumps(outcome) + "\n")
        self.count += 1
        if self.count % _FLUSH_EVERY == 0:
            self._file.flush()
