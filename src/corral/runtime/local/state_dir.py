"""Reads the state directory of a task. The files are authoritative; notices of supervisors only say where to look.

Knows the records that supervisors write; changes nothing, except that it removes what is no longer needed.
"""

from __future__ import annotations

import errno
import os
from hashlib import blake2s
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from corral.core.model import STEP_MAX, FailureClass
from corral.runtime.base import Phase, TaskKey, TaskOrder, TaskReport
from corral.runtime.local.task import records

_NAME_MAX = 180
T = TypeVar("T")


class SavedRecord(Struct, frozen=True, gc=False):
    """The last checkpoint of a task: its step, where it is, and how long saving took; 0: unknown."""

    step: int
    path: str = ""
    save_ms: int = 0
    stall_ms: int = 0


class OrderRecord(Struct, frozen=True, kw_only=True):
    """The order without its secrets, and where else on this machine the task has something."""

    order: TaskOrder
    secrets: tuple[str, ...]  # names of variables
    boot: str
    scratch: str
    cgroup_version: int
    cgroups: dict[str, str]


class StartRecord(Struct, frozen=True):
    at_ms: int
    supervisor: int
    pids: tuple[int, ...]
    unenforced: tuple[str, ...] = ()
    group: str = ""  # of the supervisor


class ExitRecord(Struct, frozen=True):
    at_ms: int
    exit_code: int
    signal: int = 0
    failure: FailureClass | None = None
    why: str = ""
    failed_ms: int = 0  # as of `TaskReport`
    rank: int | None = None
    said: str = ""


def name_of(key: TaskKey) -> str:
    """A name for files, different for different keys."""
    name = f"{quote(key.gang, safe='[]')}@{key.attempt}.{key.task}"
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 40]}~{short(name)}"


def short(name: str) -> str:
    """A short hash for paths: TMPDIR must leave room for the names of sockets."""
    return blake2s(name.encode(), digest_size=8).hexdigest()


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class TaskRecord:
    """The lines of a record; of several with the same word, the last one counts."""

    def __init__(self, data: bytes) -> None:
        lines = data[: data.rfind(b"\n") + 1].splitlines()  # the rest is still being written, or torn
        self._said = {word: rest for word, _, rest in (line.partition(b" ") for line in lines)}

    def order(self) -> OrderRecord | None:
        return self._last(records.ORDER, OrderRecord)

    def started(self) -> StartRecord | None:
        return self._last(records.STARTED, StartRecord)

    def exit(self) -> ExitRecord | None:
        return self._last(records.EXIT, ExitRecord)

    def _last(self, word: str, kind: type[T]) -> T | None:
        return _decoded(self._said.get(word.encode(), b""), kind)


class TaskState:
    """One state directory."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def record(self) -> TaskRecord:
        """What has been recorded of the task so far."""
        return TaskRecord(_read(f"{self.folder}/{records.RECORD}"))

    def saved(self) -> SavedRecord | None:
        text = _read(f"{self.folder}/{records.STEP}")
        step = _decoded(text, int)  # of an earlier version, which did not limit it
        saved = _decoded(text, SavedRecord) if step is None else SavedRecord(step)
        return saved if saved is not None and 0 <= saved.step <= STEP_MAX else None

    def stop(self) -> int | None:
        """The step at which its ranks can stop, or will."""
        return _decoded(_read(f"{self.folder}/{records.STOP}"), int)

    def is_supervised(self) -> bool:
        """Whether a supervisor has the FIFO open. Call it *before* looking for the exit, which a supervisor records
        before it ends."""
        return self.control(b"")

    def control(self, line: bytes) -> bool:
        """Send a line to the supervisor. False: there is none."""
        try:
            fd = os.open(f"{self.folder}/{records.CONTROL}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as fault:
            if fault.errno in (errno.ENXIO, errno.ENOENT):
                return False
            raise
        try:
            if line:
                os.write(fd, line)
        except BrokenPipeError:
            return False
        except BlockingIOError:
            pass  # 64 KiB of unread lines: one more would change nothing
        finally:
            os.close(fd)
        return True

    def record_exit(self, record: ExitRecord) -> None:
        """Record the exit instead of a supervisor that is gone."""
        records.add(self.folder, records.EXIT, msgspec.json.encode(record))

    def remove(self) -> None:
        """Removes the record last: if this is interrupted, it still says that the task has ended."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return
        for name in sorted(names, key=lambda name: name == records.RECORD):
            os.unlink(f"{self.folder}/{name}")
        os.rmdir(self.folder)


def up_report(key: TaskKey, node: str, gpus: tuple[str, ...], record: StartRecord) -> TaskReport:
    return TaskReport(key=key, phase=Phase.UP, at_ms=record.at_ms, node=node, gpus=gpus, unenforced=record.unenforced)


def down_report(key: TaskKey, node: str, gpus: tuple[str, ...], record: ExitRecord) -> TaskReport:
    return TaskReport(
        key=key,
        phase=Phase.DOWN,
        at_ms=record.at_ms,
        node=node,
        gpus=gpus,
        exit_code=record.exit_code,
        signal=record.signal,
        failure=record.failure,
        why=record.why,
        failed_ms=record.failed_ms,
        rank=record.rank,
        said=record.said,
    )


def _read(path: str) -> bytes:
    """Empty: it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        data = os.read(fd, 1 << 12)
        while len(more := os.read(fd, 1 << 20)):
            data += more
        return data
    finally:
        os.close(fd)


def _decoded(data: bytes, kind: type[T]) -> T | None:
    """None: it does not exist, or a power failure tore it, which is treated the same."""
    try:
        return msgspec.json.decode(data, type=kind) if data else None
    except msgspec.DecodeError:
        return None
