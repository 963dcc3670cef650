"""State directories of tasks that are over, made blank and kept for the next tasks.

Making and removing files is most of what a small task costs, the more so on file systems (ext4) that look past every
inode that was freed lately before they find a free one. Knows directories; the spawner moves a blank into its place.
"""

from __future__ import annotations

import os

from corral.backends.local.state import TaskState
from corral.backends.local.task import records

_KEPT_MAX = 256


class Blanks:
    """Those in ``folder``, which lies in the same file system as the state directories."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._paths = [f"{folder}/{name}" for name in os.listdir(folder)]

    def take(self) -> str:
        """The path of one; empty: there is none."""
        return self._paths.pop() if self._paths else ""

    def keep(self, state: TaskState) -> bool:
        """Whether it was taken. Only for a task that nobody supervises: what is still in a FIFO that somebody holds
        open would reach the next task. A record that is blank is that of no task, also where it was left half way."""
        if len(self._paths) >= _KEPT_MAX:
            return False
        try:
            if set(os.listdir(state.folder)) != {records.RECORD, records.CONTROL}:
                return False
            records.make_blank(state.folder)
            path = f"{self._folder}/{os.path.basename(state.folder)}"
            os.rename(state.folder, path)
        except OSError:
            return False  # it is removed instead
        self._paths.append(path)
        return True
