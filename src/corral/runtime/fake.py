"""A backend in memory whose tasks only pretend to run. For tests, demonstrations and benchmarks of the layers above.

A `FakeScript` says what happens to each task, and one timer thread executes it. Starts no process, writes no file. Its
tasks outlive `close`: opening it again simulates the restart of a server beside running tasks.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.runtime.base import LogPart, Phase, SavedReport, StaleEpoch, TaskKey, TaskOrder, TaskReport, Tell
from corral.runtime.fence import refuse_stale

_SIGTERM, _SIGKILL = 15, 9
STREAMS = ("stdout", "stderr")


class FakeScript(Struct, frozen=True, kw_only=True):
    """What happens to a task. ``runs_ms`` None: it runs until `FakeBackend.finish`, a warning or a kill.

    ``start_ms``: how long until it is up. ``saves``: the step it saves when warned. ``is_stubborn``: it ignores
    warnings and is killed at the deadline. ``failure`` with ``starts`` False: it never comes up.
    """

    runs_ms: int | None = None
    start_ms: int = 0
    starts: bool = True
    exit_code: int = 0
    failure: FailureClass | None = None
    why: str = ""
    saves: int | None = None
    is_stubborn: bool = False
    stdout: bytes = b""
    stderr: bytes = b""


class _Task:
    def __init__(self, order: TaskOrder, script: FakeScript) -> None:
        self.order, self.script = order, script
        self.report: TaskReport | None = None
        self.step: int | None = None
        self.log = dict.fromkeys(STREAMS, b"")

    @property
    def is_over(self) -> bool:
        return self.report is not None and self.report.phase is Phase.DOWN


class FakeBackend:
    """``script`` returns for each order what happens to it. The default: it runs until it is ended."""

    def __init__(self, nodes: Sequence[NodeSpec], script: Callable[[TaskOrder], FakeScript] | None = None) -> None:
        self._nodes = tuple(nodes)
        self._script = script or (lambda _: FakeScript())
        self._tasks: dict[TaskKey, _Task] = {}
        self._logs: dict[TaskKey, dict[str, bytes]] = {}
        self._tell: Tell | None = None
        self._epoch = 0
        self._lock = threading.RLock()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._woken = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._runs = False
        #: All calls, for tests: ("launch", key), ("warn", key), ("kill", key), ("forget", key).
        self.asked: list[tuple[str, TaskKey]] = []

    # --- the interface ------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSpec]:
        return self._nodes

    def open(self, tell: Tell, epoch: int) -> None:
        with self._lock:
            if epoch < self._epoch:
                raise StaleEpoch(epoch, self._epoch)
            self._epoch = epoch
            self._tell = tell
            self._runs = True
            for task in self._tasks.values():
                self._report_again(task)
            self._thread = threading.Thread(target=self._run_timers, name="fake-backend", daemon=True)
            self._thread.start()

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        with self._lock:
            refuse_stale(orders, self._epoch)
            for order in orders:
                self.asked.append(("launch", order.key))
                task = self._tasks.get(order.key)
                if task is not None:
                    self._after(0, partial(self._report_again, task))
                    continue
                task = self._tasks[order.key] = _Task(order, self._script(order))
                self._logs[order.key] = task.log
                self._after(task.script.start_ms, partial(self._start, task))

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        with self._lock:
            self.asked.append(("warn", key))
            task = self._tasks.get(key)
            if task is None or task.is_over:
                return
            if not task.script.is_stubborn:
                self._after(0, partial(self._stop_as_scripted, task, why))
            self._after(deadline_ms - now_ms(), partial(self._end, task, signal=_SIGKILL, why="killed at its deadline"))

    def stop_at(self, key: TaskKey, step: int) -> None:
        with self._lock:
            self.asked.append((f"stop_at {step}", key))

    def kill(self, key: TaskKey) -> None:
        with self._lock:
            self.asked.append(("kill", key))
            task = self._tasks.get(key)
            if task is not None:
                self._after(0, partial(self._end, task, signal=_SIGKILL, why="killed on request"))

    def known(self) -> Sequence[TaskKey]:
        with self._lock:
            return list(self._tasks)

    def forget(self, key: TaskKey) -> None:
        with self._lock:
            self.asked.append(("forget", key))
            task = self._tasks.get(key)
            if task is not None and task.is_over:
                del self._tasks[key]

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        with self._lock:
            log = self._logs.get(key)
            if log is None or stream not in log:
                return None
            task = self._tasks.get(key)
            size = len(log[stream])
            start = max(size + offset, 0) if offset < 0 else min(offset, size)
            data = log[stream][start : start + limit]
            is_over = (task is None or task.is_over) and start + len(data) == size
            return LogPart(start, data, start + len(data), is_over)

    def close(self) -> None:
        with self._lock:
            self._runs, self._tell = False, None
            self._woken.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # --- what tests and demonstrations may do to a task ---------------------------------------------------------------

    def finish(
        self, key: TaskKey, exit_code: int = 0, failure: FailureClass | None = None, why: str = "", signal: int = 0
    ) -> None:
        """End a running task at once, with this result."""
        with self._lock:
            self._end(self._tasks[key], exit_code=exit_code, signal=signal, failure=failure, why=why)

    def save(self, key: TaskKey, step: int) -> None:
        """The task reports that it has committed a checkpoint."""
        with self._lock:
            self._save(self._tasks[key], step)

    def write(self, key: TaskKey, data: bytes, stream: str = "stdout") -> None:
        with self._lock:
            self._tasks[key].log[stream] += data

    # --- the life of a task -------------------------------------------------------------------------------------------

    def _start(self, task: _Task) -> None:
        script = task.script
        if task.is_over:
            return  # killed before it was up
        if not script.starts:
            failure = script.failure or FailureClass.START_FAILED
            self._end(task, exit_code=script.exit_code or 127, failure=failure, why=script.why)
            return
        task.log["stdout"] += script.stdout
        task.log["stderr"] += script.stderr
        self._report(task, Phase.UP)
        if script.runs_ms is not None:
            self._after(script.runs_ms, partial(self._end_as_scripted, task))

    def _end_as_scripted(self, task: _Task) -> None:
        script = task.script
        self._end(task, exit_code=script.exit_code, failure=script.failure, why=script.why)

    def _stop_as_scripted(self, task: _Task, why: str) -> None:
        """End a warned task: one that saves ends with the requeue exit code, another one dies of the signal."""
        if task.is_over:
            return
        if task.script.saves is None:
            self._end(task, signal=_SIGTERM, why=why)
        else:
            self._save(task, task.script.saves)
            self._end(task, exit_code=task.order.requeue_exit, why=why)

    def _save(self, task: _Task, step: int) -> None:
        task.step = step
        if self._tell is not None:
            self._tell(SavedReport(task.order.key, step))

    def _end(
        self, task: _Task, *, exit_code: int = 0, signal: int = 0, failure: FailureClass | None = None, why: str = ""
    ) -> None:
        if not task.is_over:
            code = 128 + signal if signal else exit_code
            self._report(task, Phase.DOWN, exit_code=code, signal=signal, failure=failure, why=why)

    def _report(
        self,
        task: _Task,
        phase: Phase,
        exit_code: int = 0,
        signal: int = 0,
        failure: FailureClass | None = None,
        why: str = "",
    ) -> None:
        report = TaskReport(
            key=task.order.key,
            phase=phase,
            at_ms=now_ms(),
            node=task.order.node,
            exit_code=exit_code,
            signal=signal,
            failure=failure,
            why=why,
            gpus=task.order.gpus,
        )
        task.report = report
        if self._tell is not None:
            self._tell(report)

    def _report_again(self, task: _Task) -> None:
        if self._tell is None or task.report is None:
            return
        self._tell(task.report)
        if task.step is not None:
            self._tell(SavedReport(task.order.key, task.step))

    # --- time ---------------------------------------------------------------------------------------------------------

    def _after(self, delay_ms: int, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (time.monotonic() + max(delay_ms, 0) / 1000, self._count, happen))
        self._woken.notify()

    def _run_timers(self) -> None:
        with self._lock:
            while self._runs:
                due = self._agenda[0][0] - time.monotonic() if self._agenda else None
                if due is not None and due <= 0:
                    heapq.heappop(self._agenda)[2]()
                else:
                    self._woken.wait(due)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
