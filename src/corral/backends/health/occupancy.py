"""Which GPUs of this machine are in use, as far as orders and reports tell.

Of tasks that were there before (adopted) is known what was written down, or what their report says; as long as there is
one of which nothing is, every GPU counts as in use. Used from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from corral.backends.base import TaskKey, TaskOrder


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
        """Whether it ran when that was last written down, before this began."""
        return key in self._remembered

    def asked_to_leave(self, key: TaskKey) -> None:
        with self._lock:
            if key in self._gpus:
                self._leaving.add(key)

    def over(self, key: TaskKey) -> tuple[str, ...] | None:
        """The GPUs it had; None: unknown, or it was over before, or it was asked to leave: its end says nothing."""
        with self._lock:
            was_asked = key in self._leaving
            self._leaving.discard(key)
            gpus = self._gpus.pop(key, None)
            return None if was_asked else gpus

    def known(self) -> list[tuple[TaskKey, tuple[str, ...]]]:
        """To be written down."""
        with self._lock:
            return sorted((key, gpus) for key, gpus in self._gpus.items() if gpus is not None)

    def is_busy(self, uuid: str) -> bool:
        with self._lock:
            return any(gpus is None or uuid in gpus for gpus in self._gpus.values())
