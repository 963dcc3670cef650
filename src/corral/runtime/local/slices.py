"""Enforces the slice of a GPU's memory that a task was given, because the hardware does not.

Once a second, while any task has a slice, it reads how much the processes of each task use. A task that uses more is
warned, and killed if it still does after a grace time; it is killed at once if the rest of the GPU does not suffice for
the slices of others. Knows processes by their parents; a function reads the GPUs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from corral.amount_text import size
from corral.runtime.base import TaskKey
from corral.runtime.gpu_memory import GpuMemory

_log = logging.getLogger(__name__)

EVERY_S = 1.0
GRACE_MS = 10_000
_ANCESTORS_MAX = 64


class Slice(Struct, frozen=True, gc=False):
    """What a task was given."""

    gpu: str
    mib: int

    @property
    def tolerated_mib(self) -> int:
        """Some more than the slice: drivers round up, and the CUDA context counts too."""
        return self.mib + max(self.mib // 50, 256)


class SliceExcess(Struct, frozen=True, gc=False):
    """A task that uses more than its slice. ``is_urgent``: the others can no longer get theirs."""

    key: TaskKey
    used_mib: int
    slice: Slice
    is_urgent: bool

    @property
    def why(self) -> str:
        return f"it uses {size(self.used_mib)} of GPU memory, but was given {size(self.slice.mib)}"


def excesses(
    slices: Mapping[TaskKey, Slice], used: Mapping[TaskKey, int], free: Mapping[str, int]
) -> list[SliceExcess]:
    """The tasks that use more than they were given. ``used``: by each task; ``free``: on each GPU."""
    found = []
    for key, mine in slices.items():
        if used.get(key, 0) <= mine.tolerated_mib:
            continue
        owed = sum(
            max(0, other.mib - used.get(each, 0))
            for each, other in slices.items()
            if each != key and other.gpu == mine.gpu
        )
        found.append(SliceExcess(key, used[key], mine, is_urgent=free.get(mine.gpu, owed) < owed))
    return found


class SliceWatch:
    """``read``: reads the memory of these GPUs. ``roots``: the processes that a task's processes descend from."""

    def __init__(
        self,
        read: Callable[[Sequence[str]], Sequence[GpuMemory]],
        roots: Callable[[TaskKey], Sequence[int]],
        warn: Callable[[TaskKey, int, str], None],
        kill: Callable[[TaskKey], None],
    ) -> None:
        self._read = read
        self._roots = roots
        self._warn = warn
        self._kill = kill
        self._slices: dict[TaskKey, Slice] = {}
        self._warned: dict[TaskKey, tuple[float, str]] = {}  # warned tasks: the deadline, and why
        self._lock = threading.Lock()
        self._wanted, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, key: TaskKey, gpus: Sequence[str], mib: int) -> None:
        """Watch a task with a slice that is about to run, or runs."""
        if not mib or not gpus:
            return
        with self._lock:
            self._slices[key] = Slice(gpus[0], mib)
            self._wanted.set()
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="vram-watch", daemon=True)
                self._thread.start()

    def ended(self, key: TaskKey) -> str:
        """The task has ended. Returns why, if it was ended because it exceeded its slice."""
        with self._lock:
            self._slices.pop(key, None)
            return self._warned.pop(key, (0.0, ""))[1]

    def close(self) -> None:
        self._over.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(5)  # do not wait for a driver that hangs

    def _run(self) -> None:
        while not self._over.is_set():
            self._wanted.wait()
            try:
                self.look()
            except Exception:
                _log.exception("reading the memory of GPUs failed; retrying")
            with self._lock:
                if not self._slices:
                    self._wanted.clear()
            self._over.wait(EVERY_S)

    def look(self) -> None:
        """Check once: warn tasks that exceed their slice, then kill them."""
        with self._lock:
            slices = dict(self._slices)
        if not slices:
            return
        memory = self._read(sorted({each.gpu for each in slices.values()}))
        used = _by_task(memory, {root: key for key in slices for root in self._roots(key)})
        for excess in excesses(slices, used, {each.uuid: each.free_mib for each in memory}):
            self._act(excess)

    def _act(self, excess: SliceExcess) -> None:
        key = excess.key
        with self._lock:
            if key not in self._slices:
                return
            deadline_s, _ = self._warned.get(key, (None, ""))
            is_first = deadline_s is None
            if is_first:
                self._warned[key] = (time.monotonic() + GRACE_MS / 1000, excess.why)
            is_due = excess.is_urgent or (deadline_s is not None and time.monotonic() >= deadline_s)
        if is_due:
            _log.warning("killing %s: %s", key, excess.why)
            self._kill(key)
        elif is_first:
            _log.warning("warning %s: %s", key, excess.why)
            self._warn(key, time.time_ns() // 1_000_000 + GRACE_MS, f"vram_exceeded: {excess.why}")


def _by_task(memory: Sequence[GpuMemory], roots: Mapping[int, TaskKey]) -> dict[TaskKey, int]:
    """What the processes of each task use together. A task has one slice, so one GPU."""
    used: dict[TaskKey, int] = {}
    for gpu in memory:
        for pid, mib in gpu.used_mib.items():
            key = _owner(pid, roots)
            if key is not None:
                used[key] = used.get(key, 0) + mib
    return used


def _owner(pid: int, roots: Mapping[int, TaskKey]) -> TaskKey | None:
    """The task that a process descends from: supervisors adopt the orphans of their tasks."""
    for _ in range(_ANCESTORS_MAX):
        if pid in roots:
            return roots[pid]
        pid = _parent(pid)
        if pid <= 1:
            return None
    return None


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(4096).rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
