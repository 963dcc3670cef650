"""Two rules that keep a task from running twice: only the newest server gives orders, and attempts do not overlap.

**Epochs.** The highest epoch ever seen here is stored on disk; servers of an earlier epoch are refused.

**Attempts.** No task of a gang starts before all tasks of its earlier attempts have ended: two attempts would write the
same checkpoint and use the same GPUs. `Dispatch` in the server enforces it: it kills what is left and waits for the
reports. A server that has just started does not know all tasks, so `RemoteBackend` holds later attempts back until all
nodes have reported. `TaskReconciler` checks again what is on its own machine, just before a process is started.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from corral.io.files import write_file
from corral.runtime.base import StaleEpoch, TaskKey, TaskOrder


class Fence:
    """``epoch``: the highest that this object has seen. Another process may have stored a higher one meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.epoch = self.stored()

    def stored(self) -> int:
        """The highest epoch on disk. 0: there is none."""
        try:
            return int(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return 0

    def pass_through(self, epoch: int) -> None:
        """Refuse every earlier epoch from now on, also after a restart of this machine."""
        if epoch < self.epoch:
            raise StaleEpoch(epoch, self.epoch)
        if epoch > self.epoch:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path, f"{epoch}\n".encode())
            self.epoch = epoch


def refuse_stale(orders: Iterable[TaskOrder], epoch: int) -> None:
    """Raise `StaleEpoch` if one of the orders is of an earlier epoch: then none of them is executed."""
    for order in orders:
        if order.epoch < epoch:
            raise StaleEpoch(order.epoch, epoch)


def earlier_attempts(key: TaskKey, tasks: Iterable[TaskKey]) -> list[TaskKey]:
    """Those of the tasks that must have ended before this one may start."""
    return [each for each in tasks if each.gang == key.gang and each.attempt < key.attempt]
