"""What a state directory says of its task. The files are the truth; whoever tells of news only says where to look.

Knows the records that supervisors write, and reads them; changes nothing but to remove what is no longer wanted.
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

from corral.backends.base import Phase, TaskKey, TaskOrder, TaskReport
from corral.backends.local.task import records
from corral.core.model import STEP_MAX, FailureClass

_NAME_MAX = 180
T = TypeVar("T")


class OrderRecord(Struct, frozen=True, kw_only=True):
    """The order without its secrets, and where else on this machine there is something of the task."""

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


def name_of(key: TaskKey) -> str:
    """Fit for a file name, and different for different keys."""
    name = f"{quote(key.gang, safe='[]')}@{key.attempt}.{key.task}"
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 40]}~{short(name)}"


def short(name: str) -> str:
    """For paths that should be short and plain: TMPDIR must leave room for the names of sockets."""
    return blake2s(name.encode(), digest_size=8).hexdigest()


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class TaskRecord:
    """The lines of a record; of several with the same word, the last."""

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
        """What was written of the task so far."""
        return TaskRecord(_read(f"{self.folder}/{records.RECORD}"))

    def step(self) -> int | None:
        step = _decoded(_read(f"{self.folder}/{records.STEP}"), int)
        return step if step is not None and 0 <= step <= STEP_MAX else None  # one of an earlier version was not bounded

    def is_supervised(self) -> bool:
        """A supervisor lives: its end of the FIFO is open. To be asked *before* looking for the exit, which a
        supervisor
        writes before it goes."""
        return self.control(b"")

    def control(self, line: bytes) -> bool:
        """Tell the supervisor; False: there is none."""
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
            pass  # 64 KiB of orders that nobody obeyed: one more would change nothing
        finally:
            os.close(fd)
        return True

    def record_exit(self, record: ExitRecord) -> None:
        """In the place of a supervisor that is no more."""
        records.add(self.folder, records.EXIT, msgspec.json.encode(record))

    def remove(self) -> None:
        """The record goes last: half removed, it still says that the task is over."""
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
    )


def _read(path: str) -> bytes:
    """Empty: not there."""
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
    """None: not there, or torn by a power failure, which is the same."""
    try:
        return msgspec.json.decode(data, type=kind) if data else None
    except msgspec.DecodeError:
        return None
