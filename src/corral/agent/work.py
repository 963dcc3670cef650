"""From what the server wants to what the backend is asked: an order is carried out once, and never beside an older one.

Knows the backend of this machine by its seam. Everything may be asked again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from msgspec import structs

from corral.agent.observed import Observed
from corral.backends.base import Backend, StaleEpoch, TaskKey, TaskOrder
from corral.backends.fleet.messages import DesiredTask

_log = logging.getLogger(__name__)


class Work:
    """An order waits here while an older attempt of its gang is still being ended on this machine."""

    def __init__(self, backend: Backend, observed: Observed) -> None:
        self._backend, self._observed = backend, observed
        self._waiting: dict[TaskKey, DesiredTask] = {}
        self._to_forget: set[TaskKey] = set()
        self._brought: set[TaskKey] = set()  # their logs are with the server
        self._asked: set[TaskKey] = set()  # to leave, or to end
        self._lock = threading.RLock()

    def carry_out(self, tasks: Sequence[DesiredTask], epoch: int) -> None:
        """Raises `StaleEpoch`, and does nothing, when an order is of an earlier epoch than the one that is heard of."""
        for task in tasks:
            if task.order is not None and task.order.epoch < epoch:
                raise StaleEpoch(task.order.epoch, epoch)
        with self._lock:
            for task in tasks:
                self._carry_out(task)

    def _carry_out(self, task: DesiredTask) -> None:
        if task.forget:
            self._to_forget.add(task.key)
            self._forget(task.key)
            return
        if task.order is not None and self._observed.of(task.key) is None:
            if self._has_older(task.order):
                self._waiting[task.key] = task
            else:
                self._launch(task.order)
        if task.key in self._waiting:
            self._waiting[task.key] = structs.replace(task, order=task.order or self._waiting[task.key].order)
            return
        self._ask(task)

    def was_asked(self, key: TaskKey) -> bool:
        """Whether the server had it leave, or end."""
        return key in self._asked

    def _ask(self, task: DesiredTask) -> None:
        if task.leave_in_ms is not None or task.kill:
            self._asked.add(task.key)
        if task.leave_in_ms is not None:
            self._backend.warn(task.key, time.time_ns() // 1_000_000 + task.leave_in_ms, task.why)
        if task.kill:
            self._backend.kill(task.key)

    def _launch(self, order: TaskOrder) -> None:
        self._observed.expect(order.key)
        self._backend.launch([order])

    def _has_older(self, order: TaskOrder) -> bool:
        """Whether an earlier attempt is still here; it is ended."""
        key = order.key
        older = [each for each in self._observed.live() if each.gang == key.gang and each.attempt < key.attempt]
        for each in older:
            self._backend.kill(each)
        return bool(older)

    def ended(self, key: TaskKey) -> None:
        """A task is over: whoever waited for it may begin."""
        with self._lock:
            ready = [task for task in self._waiting.values() if task.order and not self._has_older(task.order)]
            for task in ready:
                del self._waiting[task.key]
                assert task.order is not None
                self._launch(task.order)
                self._ask(task)
            self._forget(key)

    def let_go(self, key: TaskKey) -> None:
        """The server has its log."""
        with self._lock:
            self._brought.add(key)
            self._forget(key)

    def end_all(self, why: str) -> None:
        """Everything that runs here ends, and nothing that waits begins."""
        with self._lock:
            self._waiting.clear()
            for key in self._observed.live():
                _log.warning("ending %s: %s", key, why)
                self._backend.kill(key)

    def _forget(self, key: TaskKey) -> None:
        """When nobody needs it any more: not the server, and not whoever brings its log there."""
        seen = self._observed.of(key)
        is_over = seen is None or seen.down is not None
        if key in self._to_forget and key in self._brought and is_over:
            self._to_forget.discard(key)
            self._brought.discard(key)
            self._asked.discard(key)
            self._observed.drop(key)
            self._backend.forget(key)
