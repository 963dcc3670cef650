"""Finds and removes what tasks leave behind: processes without a supervisor, cgroups, private directories.

Knows the machine, not the server. All of it may be repeated.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from itertools import islice

from corral.core.model import FailureClass
from corral.runtime.local.containers import Containers
from corral.runtime.local.dir_pool import DirPool
from corral.runtime.local.state_dir import ExitRecord, OrderRecord, StartRecord, TaskState, name_of, short
from corral.runtime.local.task import scratch
from corral.runtime.local.task.cgroups import Layout, TaskGroups

_SCRATCH_ROOT = re.compile(r"corral-[0-9a-f]{8}")
_DESERTED_S = 60.0  # a directory in which nothing has changed for this time is not about to be used
_LOOKED_AT_MAX = 10_000


def record_lost(state: TaskState, boot: str, containers: Containers | None = None) -> None:
    """Kill what is left of a task whose supervisor is gone, and record that as its exit."""
    record = state.record()
    order, started = record.order(), record.started()
    if order is None:
        return
    is_same_boot = order.boot == boot
    if is_same_boot and order.order.image:
        if containers is None:
            raise OSError(f"{state.folder} belongs to a container, but this server was started without containers")
        containers.end(name_of(order.order.key))
    if is_same_boot:
        _end_strays(order, started)
    if not is_same_boot:
        when = "while the task ran" if started else "before the task started"
        why = f"the machine was restarted {when}"
    elif started:
        why = f"the supervisor of the task (process {started.supervisor}) was killed, so its processes were killed"
    else:
        why = "the supervisor of the task ended before the task started"
    failure = FailureClass.NODE_LOST if started else FailureClass.START_FAILED
    state.record_exit(ExitRecord(time.time_ns() // 1_000_000, 137, 9, failure, why))


def clear(state: TaskState, blanks: DirPool) -> bool:
    """Remove everything of a task that has ended, except its log. False: not done, its supervisor still runs."""
    if state.is_supervised():
        return False
    order = state.record().order()
    if order is not None:
        scratch.remove(order.scratch)
        groups = TaskGroups(order.cgroup_version, order.cgroups)
        if any(os.path.isdir(folder) for folder in groups.unique):
            groups.remove()
    if not blanks.keep(state):
        state.remove()
    return True


def remove_unreadable(state: TaskState) -> None:
    """A directory without a readable order: the spawner, or the machine, stopped while it was created. Nothing ran."""
    if not state.is_supervised():
        state.remove()


def sweep(layout: Layout, scratch_root: str, running: set[str]) -> None:
    """Remove cgroups and private directories that belong to no running task."""
    for folder in layout.folders():
        for entry in os.scandir(folder):
            if entry.name.startswith("worker-"):
                with contextlib.suppress(OSError):  # a supervisor still runs in it
                    os.rmdir(entry.path)
            elif entry.is_dir() and entry.name not in running:
                groups = TaskGroups(layout.version, {"any": entry.path})
                groups.kill()
                groups.remove()
    kept = {short(name) for name in running}
    with contextlib.suppress(FileNotFoundError):  # removed with the last directory in it
        for entry in os.scandir(scratch_root):
            if entry.name not in kept:
                scratch.remove(entry.path)


def tidy(layout: Layout, scratch_root: str) -> None:
    """Remove the parent directories of tasks if they are empty."""
    for folder in (*layout.folders(), scratch_root):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def make_scratch_root(parent: str, identity: str) -> str:
    """A directory of ours that others may pass through but not change. It is in a shared directory, so check it."""
    path = os.path.join(parent, f"corral-{identity[:8]}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o711)
    state = os.lstat(path)
    if not os.path.isdir(path) or os.path.islink(path) or state.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} belongs to another account. Remove it, or set another directory for the private directories of "
            "tasks (scratch)."
        )
    os.chmod(path, 0o711)
    return path


def remove_deserted(parent: str) -> None:
    """Remove empty scratch directories that other, killed servers have left. Looks at a limited number, so that the
    start does not take long. A running server creates its own again when it needs it."""
    before_s = time.time() - _DESERTED_S
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in islice(entries, _LOOKED_AT_MAX):
            if _SCRATCH_ROOT.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    state = entry.stat(follow_symlinks=False)
                    is_one = state.st_mode == stat.S_IFDIR | 0o711 and state.st_uid == os.geteuid()
                    if is_one and state.st_mtime < before_s:
                        os.rmdir(entry.path)  # fails if there is something in it


def _end_strays(order: OrderRecord, started: StartRecord | None) -> None:
    """By cgroup, and by session and environment where there are no cgroups."""
    folders = {**order.cgroups, **({"worker": started.group} if started and started.group else {})}
    groups = TaskGroups(order.cgroup_version, folders)
    mark = f"CORRAL_CHECKPOINT_FILE={order.scratch}/".encode()
    for _ in range(100):
        groups.kill()
        strays = _strays(started.supervisor if started else -1, mark)
        for pid in strays:
            _kill(pid)
        if not strays and not groups.members():
            break
        time.sleep(0.01)
    groups.remove()
    scratch.remove(order.scratch)


def _strays(session: int, mark: bytes) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                continue
            with open(f"/proc/{entry}/environ", "rb") as environ:
                is_marked = mark in environ.read()
        except OSError:
            continue  # gone, or not visible to us
        if is_marked or int(fields[3]) == session:
            found.append(int(entry))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, 9)
