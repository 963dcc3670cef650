"""Ends a task: no process that descends from it is left.

The supervisor is a subreaper: when it has no children, the task has no processes, whatever sessions and groups they
created. Does not know why the task ends.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import time

from corral.runtime.local.task.cgroups import TaskGroups
from corral.runtime.local.task.system import SIGKILL

_PAUSE_S = 0.002
_PAUSE_S_MAX = 0.1


def end_all(groups: TaskGroups, ended: dict[int, int]) -> None:
    """Kill and reap until no process is left. Each round kills all that it sees. A process that was forked meanwhile is
    seen in the next round, and one with a pending SIGKILL cannot fork, so the rounds end. A process that the kernel
    does not let die (a hung driver) is waited for: while it lives, its resources are not free."""
    pause_s = _PAUSE_S
    while not reap(ended):
        groups.kill()
        for pid in descendants(os.getpid()):
            kill(pid)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _PAUSE_S_MAX)
    groups.kill()  # processes that entered the cgroup from outside


def reap(ended: dict[int, int]) -> bool:
    """Reap all children that have ended, into ``ended`` (pid to wait status). True: no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        ended[pid] = status


def descendants(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        for child in _children(pending.pop()):
            found.append(child)
            pending.append(child)
    return found


def kill(pid: int, signal: int = SIGKILL) -> None:
    try:
        os.kill(pid, signal)
    except ProcessLookupError:
        pass


def _children(pid: int) -> list[int]:
    """The children of all threads of a process. Without CONFIG_PROC_CHILDREN: by a walk over /proc."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found += map(int, listing.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
                continue  # the thread is gone
            return _children_by_walk(pid)
        except OSError:
            continue
    return found


def _children_by_walk(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(entry))
    return found
