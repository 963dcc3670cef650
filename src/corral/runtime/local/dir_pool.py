"""State directories of tasks that have ended, cleared and kept for the next tasks.

Creating and removing files is most of the cost of a small task, especially on file systems (ext4) that skip recently
freed inodes when they look for a free one. Knows directories; the spawner renames one to its new path.
"""

from __future__ import annotations

import os

from corral.runtime.local.state_dir import TaskState
from corral.runtime.local.task import records

_KEPT_MAX = 256


class DirPool:
    """The directories in ``folder``, which must be on the same file system as the state directories."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._paths = [f"{folder}/{name}" for name in os.listdir(folder)]

    def take(self) -> str:
        """The path of one directory. Empty: there is none."""
        return self._paths.pop() if self._paths else ""

    def keep(self, state: TaskState) -> bool:
        """Returns whether the directory was kept. Only for a task without a supervisor: data in a FIFO that is still
        open would reach the next task. A cleared record is that of no task, also if this stopped half way."""
        if len(self._paths) >= _KEPT_MAX:
            return False
        try:
            if set(os.listdir(state.folder)) != {records.RECORD, records.CONTROL}:
                return False
            records.make_blank(state.folder)
            path = f"{self._folder}/{os.path.basename(state.folder)}"
            os.rename(state.folder, path)
        except OSError:
            return False  # the caller removes it instead
        self._paths.append(path)
        return True
