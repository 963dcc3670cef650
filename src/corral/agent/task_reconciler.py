"""Turns the desired state from the server into calls of the backend. Each order is executed once.

Knows the runtime of this machine as a `Backend`. Every call may be repeated.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from msgspec import structs

from corral.agent.observed import Observed
from corral.remote.messages import DesiredTask
from corral.runtime.base import Backend, TaskKey, TaskOrder
from corral.runtime.fence import earlier_attempts, refuse_stale

_log = logging.getLogger(__name__)


class TaskReconciler:
    """Holds an order back while an earlier attempt of its gang is on this machine (see `fence`)."""

    def __init__(self, backend: Backend, observed: Observed) -> None:
        self._backend, self._observed = backend, observed
        self._waiting: dict[TaskKey, DesiredTask] = {}
        self._to_forget: set[TaskKey] = set()
        self._delivered: set[TaskKey] = set()  # the server has their logs
        self._asked: set[TaskKey] = set()  # the server has asked to stop or kill them
        self._lock = threading.RLock()

    def apply(self, tasks: Sequence[DesiredTask], epoch: int) -> None:
        """Raises `StaleEpoch`, and does nothing, when an order is of an earlier epoch than ``epoch``."""
        refuse_stale((task.order for task in tasks if task.order is not None), epoch)
        with self._lock:
            for task in tasks:
                self._apply(task)

    def _apply(self, task: DesiredTask) -> None:
        if task.forget:
            self._to_forget.add(task.key)
            self._forget(task.key)
            return
        if task.order is not None and self._observed.of(task.key) is None:
            if self._has_earlier(task.order):
                self._waiting[task.key] = task
            else:
                self._launch(task.order)
        if task.key in self._waiting:
            self._waiting[task.key] = structs.replace(task, order=task.order or self._waiting[task.key].order)
            return
        self._ask(task)

    def was_stopped_by_server(self, key: TaskKey) -> bool:
        """Whether the server has asked to stop or kill it."""
        return key in self._asked

    def _ask(self, task: DesiredTask) -> None:
        if task.leave_in_ms is not None or task.kill:
            self._asked.add(task.key)
        if task.leave_in_ms is not None:
            self._backend.warn(task.key, time.time_ns() // 1_000_000 + task.leave_in_ms, task.why)
        if task.stop_at is not None:
            self._backend.stop_at(task.key, task.stop_at)
        if task.kill:
            self._backend.kill(task.key)

    def _launch(self, order: TaskOrder) -> None:
        self._observed.expect(order.key)
        self._backend.launch([order])

    def _has_earlier(self, order: TaskOrder) -> bool:
        """Whether an earlier attempt is still on this machine. If so, kill it."""
        earlier = earlier_attempts(order.key, self._observed.live())
        for each in earlier:
            self._backend.kill(each)
        return bool(earlier)

    def on_ended(self, key: TaskKey) -> None:
        """A task has ended: start the orders that waited for it."""
        with self._lock:
            ready = [task for task in self._waiting.values() if task.order and not self._has_earlier(task.order)]
            for task in ready:
                del self._waiting[task.key]
                assert task.order is not None
                self._launch(task.order)
                self._ask(task)
            self._forget(key)

    def on_log_delivered(self, key: TaskKey) -> None:
        """The server has the log of this task."""
        with self._lock:
            self._delivered.add(key)
            self._forget(key)

    def end_all(self, why: str) -> None:
        """Kill everything that runs here, and drop the orders that wait."""
        with self._lock:
            self._waiting.clear()
            for key in self._observed.live():
                _log.warning("killing %s: %s", key, why)
                self._backend.kill(key)

    def _forget(self, key: TaskKey) -> None:
        """Forget a task once the server has its result and its log."""
        seen = self._observed.of(key)
        is_over = seen is None or seen.down is not None
        if key in self._to_forget and key in self._delivered and is_over:
            self._to_forget.discard(key)
            self._delivered.discard(key)
            self._asked.discard(key)
            self._observed.drop(key)
            self._backend.forget(key)
