"""Corral's own CSV: one row per job, the fields of TraceJob as columns.

Knows only those fields. ``id``, ``submit_ms``, ``work_ms`` and ``gpus`` are required; an empty cell or an absent
column means the default of the field; an unknown column is an error, since it may be misspelt.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, fields

from corral.sim.traces.text_rows import Gathering, TraceError, TraceRow, nearest, read_rows
from corral.sim.traces.trace import Trace, TraceJob

_REQUIRED = ("id", "submit_ms", "work_ms", "gpus")
_WORDS = {"team", "user", "application", "kind", "status"}
_FIELDS = tuple(field.name for field in fields(TraceJob))


def read_table(path: Path, name: str = "csv") -> Trace:
    gathering = Gathering(name, path)
    for row in read_rows(path, _REQUIRED):
        for column in row.values:
            if column not in _FIELDS:
                raise TraceError(row.file, 1, column, f"is not a field of a job.{nearest(column, _FIELDS)}")
        gathering.take(row, "id", _job(row))
    return gathering.trace()


def write_table(trace: Trace, path: Path) -> None:
    """``read_table`` reads it back equal, except for the name, the nodes and the notes."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_FIELDS)
        for job in trace.jobs:
            writer.writerow([_cell(value) for value in asdict(job).values()])


def _job(row: TraceRow) -> TraceJob:
    given: dict[str, Any] = {"id": row.text("id")}
    for field in row.values:
        if field == "priority" and row.has(field):
            given[field] = row.whole(field, least=-(2**31))
        elif field in _WORDS:
            given[field] = row.word(field)
        elif field == "models":
            given[field] = tuple(filter(None, row.word(field).split("|")))
        elif field != "id" and (row.has(field) or field in _REQUIRED):
            given[field] = row.whole(field)
    if not 1 <= given.get("gpu_milli", 1000) <= 1000:
        raise row.wrong("gpu_milli", f"is {given['gpu_milli']}, but must be between 1 and 1000.")
    return TraceJob(**given)


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return "|".join(value)
    return "" if value is None else str(value)
