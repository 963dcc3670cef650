"""How much the tasks of an account keep in their private directories, and what happens to whoever keeps too much.

They are told first, in their logs; who still keeps too much at a later look loses the task that has most. Looks in a
thread of its own, because a task may have millions of files: they are counted up to a bound, and links are not
followed. Knows folders and sizes; what is to be said or ended is told to the backend.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping

from corral.backends.base import TaskKey

_log = logging.getLogger(__name__)
_ENTRIES_MAX = 200_000  # of one task, at one look
_LOOK_S = 15.0

Say = Callable[[TaskKey, str], None]


class ScratchQuota:
    """``folders``: the private directory of each task that runs. ``bytes_max``: for all tasks of one account."""

    def __init__(self, bytes_max: int, folders: Callable[[], Mapping[TaskKey, str]], say: Say, end: Say) -> None:
        self._bytes_max, self._folders, self._say, self._end = bytes_max, folders, say, end
        self._told: set[int] = set()  # accounts
        self._over = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._run, name="scratch-quota", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self.look()
            except Exception:
                _log.exception("looking at private directories failed; retrying in %g s", _LOOK_S)

    def look(self) -> None:
        by_account: dict[int, dict[TaskKey, int]] = {}
        for key, folder in self._folders().items():
            if (found := _size(folder)) is not None:
                by_account.setdefault(found[0], {})[key] = found[1]
        self._told &= by_account.keys()
        for account, sizes in by_account.items():
            self._judge(account, sizes)

    def _judge(self, account: int, sizes: Mapping[TaskKey, int]) -> None:
        used = sum(sizes.values())
        if used <= self._bytes_max:
            self._told.discard(account)
            return
        allowed = self._bytes_max >> 20
        what = f"{used >> 20} MiB in private directories (TMPDIR) of your tasks on this machine, {allowed} allowed"
        if account not in self._told:
            self._told.add(account)
            for key in sizes:
                self._say(key, f"{what}: remove files within {_LOOK_S:g} s, or the task that has most is ended")
            return
        largest = max(sizes, key=lambda key: sizes[key])
        _log.warning("scratch_quota: account %d has %s; ending %s", account, what, largest)
        self._say(largest, f"{what}: this task has most of it and is ended")
        self._end(largest, f"scratch quota exceeded: {what}")


def _size(folder: str) -> tuple[int, int] | None:
    """The owner of a folder and the bytes below it, as far as they were counted; None: it is not there."""
    try:
        owner = os.lstat(folder).st_uid
    except OSError:
        return None
    total, seen, pending = 0, 0, [folder]
    while pending and seen < _ENTRIES_MAX:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    seen += 1
                    total += _bytes_of(entry)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    if seen >= _ENTRIES_MAX:
                        break
        except OSError:
            continue  # it was removed meanwhile
    return owner, total


def _bytes_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0
