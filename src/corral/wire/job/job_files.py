"""Files of jobs: YAML with one job or several (``---`` between them), or a script with ``#SBATCH`` lines.

Gives for each job the document to send, and its spec if it is valid, otherwise all errors with file, line and column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from corral.core.model import JobSpec
from corral.wire.document.errors import Fault, Path
from corral.wire.document.yaml import Marked, PlacedFault, TextPlace, read_yaml
from corral.wire.environment.export import with_directory
from corral.wire.job.document_limits import LIMITS, DocumentLimits
from corral.wire.job.keys import HIDES
from corral.wire.job.parse import DEFAULT_QUEUE, parse_job

#: Gives a document what it takes along from where it is submitted; and notes about that.
Exporter = Callable[[dict[str, Any]], tuple[dict[str, Any], list[str]]]


class Note(Struct, frozen=True):
    """A part of a file that has no meaning here, or another meaning than in Slurm."""

    place: TextPlace
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}: {self.why}"


class Parsed(Struct):
    """One job of a file. ``document`` is what to send to a server; ``spec`` is set if there are no faults."""

    document: dict[str, Any]
    spec: JobSpec | None = None
    faults: tuple[PlacedFault, ...] = ()
    notes: tuple[Note, ...] = ()
    marks: Marked | None = None

    def place(self, path: Path) -> TextPlace | None:
        """The position of a path of the document in the file: for errors that only a server can find."""
        return self.marks.place(path) if self.marks is not None else None


def read_job_file(
    text: str,
    name: str,
    *,
    now_ms: int = 0,
    queue: str = DEFAULT_QUEUE,
    defaults: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    limits: DocumentLimits = LIMITS,
    exporter: Exporter | None = None,
) -> list[Parsed]:
    """Every job of a YAML file. ``defaults`` apply to keys that the file does not have, ``overrides`` to all."""
    documents = read_yaml(text, name, limits.file_bytes, limits.documents)
    found = []
    for marks in documents:
        if marks.value is None and not marks.faults:
            continue  # nothing between two separators
        found.append(_parsed(marks, now_ms, queue, defaults or {}, overrides or {}, limits, exporter))
    if not found:
        fault = Fault((), "empty", "there is no job in this file", "write at least: command: python train.py")
        found.append(Parsed({}, faults=(PlacedFault(TextPlace(name, 1, 1), fault),)))
    return found


def _parsed(
    marks: Marked,
    now_ms: int,
    queue: str,
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any],
    limits: DocumentLimits,
    exporter: Exporter | None,
) -> Parsed:
    document = marks.value
    notes: list[str] = []
    if isinstance(document, dict):
        document = rooted(overlaid(overlaid(dict(defaults), document), overrides), defaults)
        if exporter is not None:
            document, notes = exporter(document)
    elif marks.faults:
        return Parsed({}, faults=tuple(marks.faults), marks=marks)
    spec = parse_job(document, now_ms=now_ms, queue=queue, limits=limits)
    faults = list(marks.faults)
    if not isinstance(spec, JobSpec):
        faults += [marks.placed(each) for each in spec]
    faults.sort(key=lambda each: (each.place.line, each.place.column))
    sound = spec if isinstance(spec, JobSpec) and not faults else None
    said = tuple(Note(marks.place(("export",)), "export", note) for note in notes)
    return Parsed(document if isinstance(document, dict) else {}, sound, tuple(faults), said, marks)


def overlaid(document: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The document with other values for some keys. Keys for the same setting are removed; variables are merged."""
    hidden = {name for stated in over for name in HIDES.get(stated, ()) if name not in over}
    found = {key: value for key, value in document.items() if key not in hidden}
    for key, value in over.items():
        below = found.get(key)
        if key in ("env", "secrets", "labels") and isinstance(below, dict) and isinstance(value, dict):
            found[key] = below | value
        else:
            found[key] = value
    return found


def rooted(document: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A relative directory is relative to the directory of the submission, which is also the default."""
    base = defaults.get("directory")
    return with_directory(document, base) if isinstance(base, str) else document


def is_script(text: str) -> bool:
    """Whether a file is a script for ``sbatch``, not YAML."""
    return text.startswith("#!") or re.search(r"^#SBATCH\s", text, re.MULTILINE) is not None


def faults_in(jobs: Sequence[Parsed]) -> list[PlacedFault]:
    return [fault for job in jobs for fault in job.faults]
