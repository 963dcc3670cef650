"""The quota on private directories: how much all tasks of an account use, and what happens if it is too much.

The tasks are warned first, in their logs. If the account still uses too much at a later check, the task that uses most
is killed. The check has its own thread, because a task may have millions of files: it counts a limited number, and does
not follow links. Knows directories and sizes; the backend writes to logs and kills.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping

from corral.amount_text import size
from corral.runtime.base import TaskKey

_log = logging.getLogger(__name__)
_ENTRIES_MAX = 200_000  # of one task, in one check
_LOOK_S = 15.0

Say = Callable[[TaskKey, str], None]


class ScratchQuota:
    """``folders``: the private directory of each running task. ``bytes_max``: for all tasks of one account."""

    def __init__(self, bytes_max: int, folders: Callable[[], Mapping[TaskKey, str]], say: Say, end: Say) -> None:
        self._bytes_max = bytes_max
        self._folders = folders
        self._say = say
        self._end = end
        self._warned: set[int] = set()  # accounts that were warned
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
                _log.exception("checking private directories failed; retrying in %g s", _LOOK_S)

    def look(self) -> None:
        by_account: dict[int, dict[TaskKey, int]] = {}
        for key, folder in self._folders().items():
            if (found := _size(folder)) is not None:
                by_account.setdefault(found[0], {})[key] = found[1]
        self._warned &= by_account.keys()
        for account, sizes in by_account.items():
            self._judge(account, sizes)

    def _judge(self, account: int, sizes: Mapping[TaskKey, int]) -> None:
        used = sum(sizes.values())
        if used <= self._bytes_max:
            self._warned.discard(account)
            return
        use, allowed = size(used >> 20), size(self._bytes_max >> 20)
        what = f"your tasks use {use} in private directories (TMPDIR) on this machine; {allowed} are allowed"
        if account not in self._warned:
            self._warned.add(account)
            for key in sizes:
                self._say(key, f"{what}: remove files within {_LOOK_S:g} s, or the task that uses most is killed")
            return
        largest = max(sizes, key=lambda key: sizes[key])
        _log.warning("scratch_quota: killing %s of account %d: %s", largest, account, what)
        self._say(largest, f"{what}: this task uses most of it and is killed")
        self._end(largest, f"scratch quota exceeded: {what}")


def _size(folder: str) -> tuple[int, int] | None:
    """The owner of a directory and the bytes below it, as far as they were counted. None: it does not exist."""
    try:
        owner = os.lstat(folder).st_uid
    except OSError:
        return None
    total = seen = 0
    pending = [folder]
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
