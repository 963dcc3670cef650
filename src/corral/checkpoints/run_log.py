"""The log of a run: which processes may write, which checkpoints exist, and who has used them.

Pure. A log is a sequence of entries with consecutive numbers. An entry is created only if its number is free, so of two
writers that have read the same log, one must read again before it writes. That makes the rules here exact: an attempt
that has been replaced cannot commit, because the entry of its successor took the number. Entries are never changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from .manifest import Origin

#: Kinds of entries.
OPENED = "opened"
SAVED = "saved"
REMOVED = "removed"
DAMAGED = "damaged"
USED = "used"


class Fenced(Exception):
    """A later attempt, or a later job, writes this run now."""


@dataclass(frozen=True)
class Writer:
    """A process that may commit: ``number`` is the position of its entry in the log.

    ``claim``: its job and attempt as numbers. They are given out in the order in which attempts start, so of two
    writers the one with the higher claim has the right; of equal ones the later.
    """

    number: int
    id: str
    origin: Origin
    claim: tuple[int, int]
    at_ms: int

    @property
    def right(self) -> tuple[int, int, int]:
        return (*self.claim, self.number)


@dataclass(frozen=True)
class Use:
    """A run that was started from a checkpoint, or continued with it."""

    run: str
    job: str
    attempt: int
    at_ms: int


@dataclass
class StoredCheckpoint:
    """``number``: the position of its entry in the log. ``removed``, ``damaged``: why; empty: it is neither."""

    number: int
    step: int
    manifest: str
    sha256: str
    size: int
    new: int
    world: int
    writer: int
    at_ms: int
    save_ms: int = 0
    stall_ms: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    removed: str = ""
    damaged: str = ""
    uses: list[Use] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        return not self.removed and not self.damaged


@dataclass
class RunState:
    """The fold of a log. ``unreadable``: numbers of entries that are damaged; they count as empty."""

    head: int = 0
    writers: dict[int, Writer] = field(default_factory=dict)
    checkpoints: dict[int, StoredCheckpoint] = field(default_factory=dict)
    unreadable: list[int] = field(default_factory=list)

    @property
    def writer(self) -> Writer | None:
        """The one that may commit."""
        return max(self.writers.values(), key=lambda each: each.right, default=None)

    def usable(self) -> list[StoredCheckpoint]:
        """Newest first, in the order of the log: after a restart from an earlier step, a lower step may be newer."""
        return [found for _, found in sorted(self.checkpoints.items(), reverse=True) if found.is_usable]

    def at_step(self, step: int) -> StoredCheckpoint | None:
        """The newest one of this step that was not removed."""
        found = [each for each in self.checkpoints.values() if each.step == step and not each.removed]
        return max(found, key=lambda each: each.number, default=None)

    def apply(self, number: int, entry: dict[str, Any] | None) -> None:
        self.head = max(self.head, number)
        try:
            _FOLDS[entry["kind"]](self, number, entry) if entry else self.unreadable.append(number)
        except (KeyError, TypeError, ValueError, AttributeError):
            self.unreadable.append(number)


def claim_of(state: RunState, origin: Origin) -> tuple[int, int]:
    """Raises `Fenced` if a later attempt has opened the run. A process outside of Corral takes over from any other:
    the user who starts it decides."""
    last = state.writer
    if not origin.job.isdecimal():
        return (last.claim[0], last.claim[1] + 1) if last else (0, 1)
    claim = (int(origin.job), origin.attempt)
    if last and last.claim > claim:
        raise Fenced(f"{_who(last.origin)} writes this run; this is {_who(origin)}")
    return claim


def check_right(state: RunState, writer: Writer) -> None:
    """Raises `Fenced` if another process has the right to write now."""
    last = state.writer
    if last and last.right > writer.right:
        raise Fenced(f"{_who(last.origin)} has taken over this run from {_who(writer.origin)}")


def encode_entry(kind: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps({"kind": kind, **fields}, sort_keys=True)
    return json.dumps({"entry": body, "sha256": hashlib.sha256(body.encode()).hexdigest()}).encode()


def decode_entry(content: bytes) -> dict[str, Any] | None:
    """None: it is damaged."""
    try:
        record = json.loads(content)
        body = record["entry"]
        if hashlib.sha256(body.encode()).hexdigest() != record["sha256"]:
            return None
        entry = json.loads(body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _who(origin: Origin) -> str:
    return (
        f"attempt {origin.attempt} of job {origin.job}" if origin.job else f"a process on {origin.host or 'this host'}"
    )


def _opened(state: RunState, number: int, entry: dict[str, Any]) -> None:
    job, attempt = entry["claim"]
    claim = (int(job), int(attempt))
    state.writers[number] = Writer(number, str(entry["id"]), Origin(**entry["origin"]), claim, int(entry["at_ms"]))


def _saved(state: RunState, number: int, entry: dict[str, Any]) -> None:
    known = {name: entry[name] for name in entry if name in StoredCheckpoint.__dataclass_fields__}
    state.checkpoints[number] = StoredCheckpoint(**{**known, "number": number})


def _removed(state: RunState, _: int, entry: dict[str, Any]) -> None:
    state.checkpoints[entry["checkpoint"]].removed = str(entry["why"]) or "removed"


def _damaged(state: RunState, _: int, entry: dict[str, Any]) -> None:
    state.checkpoints[entry["checkpoint"]].damaged = str(entry["why"]) or "damaged"


def _used(state: RunState, _: int, entry: dict[str, Any]) -> None:
    use = Use(str(entry["run"]), str(entry["job"]), int(entry["attempt"]), int(entry["at_ms"]))
    state.checkpoints[entry["checkpoint"]].uses.append(use)


_FOLDS = {OPENED: _opened, SAVED: _saved, REMOVED: _removed, DAMAGED: _damaged, USED: _used}
