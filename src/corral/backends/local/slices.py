"""Holds tasks to the slice of a GPU's memory that they were given, since the hardware does not.

Once a second, as long as a task has a slice: what do the processes of each task use? One that uses more is warned, and
ended when it still does a moment later; at once, when what is left on the GPU is less than others may still take. Knows
processes by their parents; what is told of the GPUs comes from a function.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from corral.backends.base import TaskKey
from corral.backends.gpu_memory import GpuMemory

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
        """Drivers round up, and a context is a part of the slice."""
        return self.mib + max(self.mib // 50, 256)


class Excess(Struct, frozen=True, gc=False):
    """A task that uses more than its slice; ``is_urgent``: others could not get theirs any more."""

    key: TaskKey
    used_mib: int
    slice: Slice
    is_urgent: bool

    @property
    def why(self) -> str:
        return f"it uses {self.used_mib} MiB of GPU memory and was given {self.slice.mib} MiB"


def excesses(slices: Mapping[TaskKey, Slice], used: Mapping[TaskKey, int], free: Mapping[str, int]) -> list[Excess]:
    """Who uses more than was given, by what each task uses and what is free on each GPU."""
    found = []
    for key, mine in slices.items():
        if used.get(key, 0) <= mine.tolerated_mib:
            continue
        owed = sum(
            max(0, other.mib - used.get(each, 0))
            for each, other in slices.items()
            if each != key and other.gpu == mine.gpu
        )
        found.append(Excess(key, used[key], mine, is_urgent=free.get(mine.gpu, owed) < owed))
    return found


class SliceWatch:
    """``read``: what is used of these GPUs. ``roots``: the processes that a task's processes descend from."""

    def __init__(
        self,
        read: Callable[[Sequence[str]], Sequence[GpuMemory]],
        roots: Callable[[TaskKey], Sequence[int]],
        warn: Callable[[TaskKey, int, str], None],
        kill: Callable[[TaskKey], None],
    ) -> None:
        self._read, self._roots, self._warn, self._kill = read, roots, warn, kill
        self._slices: dict[TaskKey, Slice] = {}
        self._told: dict[TaskKey, tuple[float, str]] = {}  # when it must be over, and why
        self._lock = threading.Lock()
        self._wanted, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, key: TaskKey, gpus: Sequence[str], mib: int) -> None:
        """A task that has a slice is about to run, or runs."""
        if not mib or not gpus:
            return
        with self._lock:
            self._slices[key] = Slice(gpus[0], mib)
            self._wanted.set()
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="vram-watch", daemon=True)
                self._thread.start()

    def ended(self, key: TaskKey) -> str:
        """The task is over; why, if that is because it exceeded its slice."""
        with self._lock:
            self._slices.pop(key, None)
            return self._told.pop(key, (0.0, ""))[1]

    def close(self) -> None:
        self._over.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(5)  # a driver that hangs keeps nobody from ending

    def _run(self) -> None:
        while not self._over.is_set():
            self._wanted.wait()
            try:
                self.look()
            except Exception:
                _log.exception("looking at the memory of GPUs failed; trying again")
            with self._lock:
                if not self._slices:
                    self._wanted.clear()
            self._over.wait(EVERY_S)

    def look(self) -> None:
        """Once: who exceeds is warned, then ended."""
        with self._lock:
            slices = dict(self._slices)
        if not slices:
            return
        memory = self._read(sorted({each.gpu for each in slices.values()}))
        used = _by_task(memory, {root: key for key in slices for root in self._roots(key)})
        for excess in excesses(slices, used, {each.uuid: each.free_mib for each in memory}):
            self._act(excess)

    def _act(self, excess: Excess) -> None:
        key = excess.key
        with self._lock:
            if key not in self._slices:
                return
            deadline_s, _ = self._told.get(key, (None, ""))
            is_first = deadline_s is None
            if is_first:
                self._told[key] = (time.monotonic() + GRACE_MS / 1000, excess.why)
            is_due = excess.is_urgent or (deadline_s is not None and time.monotonic() >= deadline_s)
        if is_due:
            _log.warning("ending %s: %s", key, excess.why)
            self._kill(key)
        elif is_first:
            _log.warning("%s is told to leave: %s", key, excess.why)
            self._warn(key, time.time_ns() // 1_000_000 + GRACE_MS, f"vram_exceeded: {excess.why}")


def _by_task(memory: Sequence[GpuMemory], roots: Mapping[int, TaskKey]) -> dict[TaskKey, int]:
    """What the processes of each task have together. A task has one slice, so one GPU."""
    used: dict[TaskKey, int] = {}
    for gpu in memory:
        for pid, mib in gpu.used_mib.items():
            key = _owner(pid, roots)
            if key is not None:
                used[key] = used.get(key, 0) + mib
    return used


def _owner(pid: int, roots: Mapping[int, TaskKey]) -> TaskKey | None:
    """The task that a process descends from: supervisors adopt what their tasks leave behind."""
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
