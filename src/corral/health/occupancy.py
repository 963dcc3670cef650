"""Which GPUs of this machine are in use, by orders and reports.

Of adopted tasks it knows what was recorded, or what their report says. As long as nothing is known of one of them,
every GPU counts as in use. Used from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from corral.runtime.base import TaskKey, TaskOrder


class Occupancy:
    def __init__(self, remembered: Iterable[tuple[TaskKey, tuple[str, ...]]] = ()) -> None:
        self._remembered = dict(remembered)
        self._gpus: dict[TaskKey, tuple[str, ...] | None] = {}
        self._leaving: set[TaskKey] = set()
        self._lock = threading.Lock()

    def launched(self, orders: Iterable[TaskOrder]) -> None:
        with self._lock:
            self._gpus |= {order.key: order.gpus for order in orders}

    def runs(self, key: TaskKey, gpus: tuple[str, ...] | None = None) -> None:
        with self._lock:
            self._gpus.setdefault(key, gpus if gpus is not None else self._remembered.get(key))

    def is_remembered(self, key: TaskKey) -> bool:
        """Whether it was running when that was last recorded, before this process started."""
        return key in self._remembered

    def asked_to_leave(self, key: TaskKey) -> None:
        with self._lock:
            if key in self._gpus:
                self._leaving.add(key)

    def over(self, key: TaskKey) -> tuple[str, ...] | None:
        """The GPUs it had. None: unknown, it had ended before, or it was asked to stop: its end says nothing."""
        with self._lock:
            was_asked = key in self._leaving
            self._leaving.discard(key)
            gpus = self._gpus.pop(key, None)
            return None if was_asked else gpus

    def known(self) -> list[tuple[TaskKey, tuple[str, ...]]]:
        """What to record."""
        with self._lock:
            return sorted((key, gpus) for key, gpus in self._gpus.items() if gpus is not None)

    def is_busy(self, uuid: str) -> bool:
        with self._lock:
            return any(gpus is None or uuid in gpus for gpus in self._gpus.values())
