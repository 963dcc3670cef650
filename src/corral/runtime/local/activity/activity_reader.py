"""Reads regularly what the tasks of this machine do, and reports it. Has its own thread: a look at many processes takes
milliseconds.

While no task runs it reads no process, and reports the machine itself less often. Knows tasks by their state
directories; GPUs are added elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from corral.runtime.base import ActivityReport, TaskActivity, TaskKey, Tell
from corral.runtime.local.activity.process_trees import (
    ProcessTrees,
    ProcessUse,
    machine_cpu_ms,
    machine_memory_mib,
)
from corral.runtime.local.activity.rank_files import Progress, read_progress
from corral.runtime.local.state_dir import TaskState
from corral.runtime.local.task.cgroups import memory_used
from corral.runtime.local.task.lease import now_ms as boot_ms
from corral.wire.details import RankActivity

_log = logging.getLogger(__name__)
_TASKS_MAX = 1_000  # in one report
_RANKS_MAX = 64  # of one task
_CALM = 6  # without tasks, the machine itself is read this many times less often
_LOOK_S = 2.0  # between two looks for new tasks
_NEW_MAX = 64  # of more tasks at once, new ones wait for their turn


class RunningTask(Struct, frozen=True):
    """A task that runs: its state directory, and its private directory."""

    key: TaskKey
    state: TaskState
    folder: str


class ActivityReader:
    """``running``: the tasks that run now; called in the thread of this reader."""

    def __init__(self, node: str, running: Callable[[], Sequence[RunningTask]], every_ms: int) -> None:
        self._node = node
        self._running = running
        self._every_s = every_ms / 1000
        self._known: dict[TaskKey, _Known] = {}
        self._machine = machine_cpu_ms()
        self._read_s = time.monotonic()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, tell: Tell) -> None:
        self._thread = threading.Thread(target=self._run, args=(tell,), name="activity", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, tell: Tell) -> None:
        while not self._ends.wait(min(_LOOK_S, self._every_s)):
            try:
                if self._is_due():
                    tell(self.read())
            except Exception:
                _log.exception("reading the activity of tasks failed; retrying")

    def _is_due(self) -> bool:
        """New tasks are read soon, and once more: CPU use needs two readings. So is the machine after the last task."""
        running, passed_s = self._running(), time.monotonic() - self._read_s
        if not running:
            return bool(self._known) or passed_s >= _CALM * self._every_s
        if passed_s >= self._every_s:
            return True
        known = [self._known.get(task.key) for task in running]
        return len(running) <= _NEW_MAX and any(each is None or each.readings < 2 for each in known)

    def read(self) -> ActivityReport:
        """What the machine and its tasks do. CPU use is known from the second reading on."""
        running = list(self._running())[:_TASKS_MAX]
        self._known = {task.key: self._known.get(task.key) or _Known(task) for task in running}
        trees = ProcessTrees() if running else None
        tasks = tuple(self._known[task.key].read(trees) for task in running if trees is not None)
        return ActivityReport(self._node, self._cpu_milli(), machine_memory_mib(), (), tasks)

    def _cpu_milli(self) -> int | None:
        before, before_s = self._machine, self._read_s
        self._machine, self._read_s = machine_cpu_ms(), time.monotonic()
        if before is None or self._machine is None or self._read_s <= before_s:
            return None
        return max(round((self._machine - before) / (self._read_s - before_s)), 0)


class _Known:
    """What is remembered of a task: its first processes, and the CPU time that it had used at the last reading."""

    def __init__(self, task: RunningTask) -> None:
        self._task = task
        record = task.state.record()
        ordered, started = record.order(), record.started()
        self._memory = "" if ordered is None else ordered.cgroups.get("memory", "")
        self._version = 0 if ordered is None else ordered.cgroup_version
        self._roots = () if started is None else (started.supervisor, *started.pids)
        processes = () if ordered is None else ordered.order.processes
        pids = () if started is None or len(started.pids) != len(processes) else started.pids
        ranks = [dict(process.env).get("RANK", "") for process in processes]
        self._ranks = {
            int(rank) if rank.isdecimal() else local: pids[local] if pids else None
            for local, rank in enumerate(ranks[:_RANKS_MAX])
        }
        self._cpu_ms: dict[int | None, int] = {}  # by rank; of the whole task under None
        self._read_s = 0.0
        self.readings = 0

    def read(self, trees: ProcessTrees) -> TaskActivity:
        self.readings += 1
        now_s = time.monotonic()
        passed_s, self._read_s = now_s - self._read_s, now_s
        use = trees.of(self._roots)
        cpu_milli = self._milli(None, use, passed_s)
        memory_mib = memory_used(self._version, self._memory) if self._memory else None
        if memory_mib is None and use is not None:
            memory_mib = use.memory_kib // 1024
        return TaskActivity(self._task.key, cpu_milli, memory_mib, tuple(self._read_ranks(trees, passed_s)))

    def _read_ranks(self, trees: ProcessTrees, passed_s: float) -> list[RankActivity]:
        progress = read_progress(self._task.folder)
        now_ms, found = boot_ms(), []
        for rank in sorted({*self._ranks, *progress})[:_RANKS_MAX]:
            pid = self._ranks.get(rank)
            use = None if pid is None else trees.of([pid])
            found.append(_rank(rank, self._milli(rank, use, passed_s), progress, now_ms))
        return found

    def _milli(self, of: int | None, use: ProcessUse | None, passed_s: float) -> int | None:
        """Thousandths of a CPU since the last reading. None: there was none."""
        before = self._cpu_ms.pop(of, None)
        if use is None:
            return None
        self._cpu_ms[of] = use.cpu_ms
        return None if before is None or passed_s <= 0 else max(round((use.cpu_ms - before) / passed_s), 0)


def _rank(rank: int, cpu_milli: int | None, progress: Mapping[int, Progress], now_ms: int) -> RankActivity:
    stated = progress.get(rank)
    if stated is None:
        return RankActivity(rank=rank, cpu_milli=cpu_milli)
    return RankActivity(
        rank=rank,
        cpu_milli=cpu_milli,
        step=stated.step,
        step_ms=stated.step_ms,
        since_step_ms=max(now_ms - stated.boot_ms, 0),
        metrics=stated.metrics,
        parameters=stated.parameters,
    )
