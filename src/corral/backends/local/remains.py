"""What tasks leave behind: processes without a supervisor, cgroups, private directories; found and removed.

Knows the machine, not the server. All of it may be repeated.
"""

from __future__ import annotations

import contextlib
import os
import time

from corral.backends.local.blanks import Blanks
from corral.backends.local.containers import Containers
from corral.backends.local.state import ExitRecord, OrderRecord, StartRecord, TaskState, name_of, short
from corral.backends.local.task import scratch
from corral.backends.local.task.cgroups import Layout, TaskGroups
from corral.core.model import FailureClass


def bury(state: TaskState, boot: str, containers: Containers | None = None) -> None:
    """End what is left of a task whose supervisor is gone, and record that as its exit."""
    record = state.record()
    order, started = record.order(), record.started()
    if order is None:
        return
    is_same_boot = order.boot == boot
    if is_same_boot and order.order.image:
        if containers is None:
            raise OSError(f"{state.folder} is of a container, and this server was started without containers")
        containers.end(name_of(order.order.key))
    if is_same_boot:
        _end_strays(order, started)
    if not is_same_boot:
        why = "the machine was restarted while the task ran" if started else "the machine was restarted before it began"
    elif started:
        why = f"the supervisor of the task (process {started.supervisor}) was killed; its processes were ended"
    else:
        why = "the supervisor of the task ended before the task had begun"
    failure = FailureClass.NODE_LOST if started else FailureClass.START_FAILED
    state.record_exit(ExitRecord(time.time_ns() // 1_000_000, 137, 9, failure, why))


def clear(state: TaskState, blanks: Blanks) -> bool:
    """Everything of a task that is over, but its log. False: nothing was done, its supervisor is still at it."""
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
    """A directory without a readable order: the spawner, or the machine, ended while it was made. Nothing ran."""
    if not state.is_supervised():
        state.remove()


def sweep(layout: Layout, scratch_root: str, running: set[str]) -> None:
    """Groups and private directories of no task that runs."""
    for folder in layout.folders():
        for entry in os.scandir(folder):
            if entry.name.startswith("worker-"):
                with contextlib.suppress(OSError):  # a supervisor lives in it
                    os.rmdir(entry.path)
            elif entry.is_dir() and entry.name not in running:
                groups = TaskGroups(layout.version, {"any": entry.path})
                groups.kill()
                groups.remove()
    kept = {short(name) for name in running}
    for entry in os.scandir(scratch_root):
        if entry.name not in kept:
            scratch.remove(entry.path)


def tidy(layout: Layout, scratch_root: str) -> None:
    """The places that tasks were kept in, when none is left in them."""
    for folder in (*layout.folders(), scratch_root):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def make_scratch_root(parent: str, identity: str) -> str:
    """A directory of ours that others may pass through but not change; in a shared place, so it is looked at twice."""
    path = os.path.join(parent, f"corral-{identity[:8]}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o711)
    state = os.lstat(path)
    if not os.path.isdir(path) or os.path.islink(path) or state.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} is not ours: another account has made it. Remove it, or set another place for the private "
            "directories of tasks."
        )
    os.chmod(path, 0o711)
    return path


def _end_strays(order: OrderRecord, started: StartRecord | None) -> None:
    """By cgroup; and by session and environment, for where there are no cgroups."""
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
            continue  # gone, or not ours to see
        if is_marked or int(fields[3]) == session:
            found.append(int(entry))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, 9)
