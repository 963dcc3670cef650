"""The state of a node as its backend reports it, with a version that increases with every change.

Knows what changed after which version, so that a report holds only what is new. May be called from any thread.
"""

from __future__ import annotations

import threading

from msgspec import structs

from corral.remote.messages import ObservedTask
from corral.runtime.base import (
    ActivityReport,
    DetailsReport,
    HealthReport,
    NodeReport,
    PaceReport,
    Phase,
    Report,
    SavedReport,
    StopReport,
    TaskKey,
)
from corral.wire.details import NodeDetails


class Observed:
    def __init__(self) -> None:
        self.version = 0
        self._tasks: dict[TaskKey, tuple[int, ObservedTask]] = {}
        self._health: dict[int | None, tuple[int, HealthReport]] = {}
        self._details: tuple[int, NodeDetails | None] = (0, None)
        self._activity: ActivityReport | None = None  # not sent yet
        self._lock = threading.Lock()

    def take(self, report: Report) -> None:
        if isinstance(report, NodeReport):
            return
        with self._lock:
            if isinstance(report, HealthReport):
                self.version += 1
                self._health[report.gpu] = self.version, report
                return
            if isinstance(report, DetailsReport):
                self.version += 1
                self._details = self.version, report.details
                return
            if isinstance(report, ActivityReport):
                self._activity = report
                return
            _, task = self._tasks.get(report.key, (0, ObservedTask(report.key)))
            if isinstance(report, PaceReport):
                task = structs.replace(task, busy_ms=report.busy_ms)
            elif isinstance(report, SavedReport):
                saved = {"save_ms": report.save_ms, "stall_ms": report.stall_ms}
                task = structs.replace(task, step=report.step, path=report.path, **saved)
            elif isinstance(report, StopReport):
                task = structs.replace(task, stop=report.step)
            elif report.phase is Phase.UP:
                task = structs.replace(task, up=report)
            else:
                task = structs.replace(task, down=report)
            self.version += 1
            self._tasks[report.key] = self.version, task

    def expect(self, key: TaskKey) -> None:
        """Record that the task was ordered; there is no report of it yet."""
        with self._lock:
            if key not in self._tasks:
                self.version += 1
                self._tasks[key] = self.version, ObservedTask(key)

    def drop(self, key: TaskKey) -> None:
        with self._lock:
            self._tasks.pop(key, None)

    def of(self, key: TaskKey) -> ObservedTask | None:
        with self._lock:
            found = self._tasks.get(key)
            return None if found is None else found[1]

    def live(self) -> list[TaskKey]:
        """Tasks that may have processes."""
        with self._lock:
            return [key for key, (_, task) in self._tasks.items() if task.down is None]

    def over(self) -> list[TaskKey]:
        with self._lock:
            return [key for key, (_, task) in self._tasks.items() if task.down is not None]

    def details_after(self, base: int) -> NodeDetails | None:
        """The hardware and software of the machine, if they were read after ``base``."""
        version, details = self._details
        return details if version > base else None

    def pop_activity(self) -> ActivityReport | None:
        """The newest reading of what the machine does, once. It has no version: a lost one is replaced soon."""
        with self._lock:
            activity, self._activity = self._activity, None
            return activity

    def after(self, base: int) -> tuple[int, tuple[ObservedTask, ...], tuple[HealthReport, ...]]:
        """The present version, and what changed after ``base``. -1: everything."""
        with self._lock:
            tasks = tuple(task for version, task in self._tasks.values() if version > base)
            health = tuple(report for version, report in self._health.values() if version > base)
            return self.version, tasks, health
